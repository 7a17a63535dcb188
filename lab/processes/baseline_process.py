"""Baseline of the rows `tokens` and `accuracy`: one process that samples and trains in turn, with a peer's
engine, learner and settings, without a network.

    python -m lab.processes.baseline_process '{"model": ..., "seconds": 20, "warm": 3, "settings": []}'
        -> {"tokens", "seconds", "cpu", "learn", ...}

A turn samples a batch of groups in calls of the sampler's size, computes rewards and gradient, steps, and
loads the weights as a release's bytes into the engine. It counts the tokens of completions, end tokens
included, that were sampled and then trained on.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

from lab.swarms.partner import opened, say


def main() -> int:
    import torch

    setup = opened()
    torch.set_num_threads(1)
    loop = SampleAndTrain(Path(setup["model"]), *setup["settings"])
    for _ in range(setup["warm"]):
        loop.turn()
    loop.forget()
    began, cpu = time.perf_counter(), time.process_time()
    while time.perf_counter() - began < setup["seconds"]:
        loop.turn()
    seconds, cpu = time.perf_counter() - began, time.process_time() - cpu
    say(
        seconds=seconds, cpu=cpu, tokens=loop.tokens, versions=loop.versions, reward=loop.reward, **loop.spent
    )
    return 0


class SampleAndTrain:
    def __init__(self, model: Path, *sets: str, config: str = "") -> None:
        from lab.swarms.local_swarm import settings
        from peers.build.model import factory
        from swarm.learn.models import tokenization
        from swarm.tasks import catalog as tasks
        from swarm.tasks.rendered import Rendered
        from swarm.types import PeerId

        self.config = settings(*sets, config=config)
        run = self.config.run
        self.engine = factory.hf(model, self.config)
        self.learner, _ = factory.learner(model, self.config)
        render = tokenization.of_run(model, run).render_all
        self.source = Rendered(tasks.source(run.task, run.seed), render)
        self.me = PeerId("alone")
        self._next = 0
        self.forget()

    def forget(self) -> None:
        """Reset the counters."""
        self.tokens, self.versions, self.reward = 0, 0, 0.0
        self.spent = {"sample": 0.0, "learn": 0.0, "adopt": 0.0}

    def turn(self) -> None:
        start = time.perf_counter()
        drawn: list[Any] = []
        while len(drawn) < self.config.run.batch.groups:
            drawn += self._sample(
                min(self.config.peer.engine.tasks, self.config.run.batch.groups - len(drawn))
            )
        sampled = time.perf_counter()
        groups, prompts, rewards = map(list, zip(*drawn, strict=True))
        gradient = self.learner.gradient(groups, prompts, rewards, time.time())
        self.learner.step(gradient.vector)
        learned = time.perf_counter()
        self._adopt()
        self.spent["sample"] += sampled - start
        self.spent["learn"] += learned - sampled
        self.spent["adopt"] += time.perf_counter() - learned
        self.tokens += sum(sum(group.lengths) for group in groups)
        self.versions += 1
        self.reward = gradient.metrics["reward"]

    def _sample(self, count: int) -> list[tuple[Any, str, tuple[float, ...]]]:
        """(group, prompt, rewards) of the next tasks."""
        from peers.sampler.new_group import make_group
        from swarm.core.intake.curriculum import Draw
        from swarm.types import Digest, Release, Times

        now, size = time.time(), self.config.run.sampling.group_size
        tasks = [self.source.task(self._next + i) for i in range(count)]
        self._next += count
        times = Times(released=now, fetched=now, used=now, finished=now, sent=now)
        release = Release(
            version=self.learner.version,
            weights=Digest(""),
            size=0,
            parent=Digest(""),
            publisher=self.me,
            learners=1,
            groups=0,
            released=now,
        )
        seeds = range(self._next, self._next + count)
        sampled = self.engine.sample([task.prompt for task in tasks], size, seeds)
        out = []
        for task, seed, completions in zip(tasks, seeds, sampled, strict=True):
            rewards = tuple(self.source.rewards(task, completions.texts))
            drawn = Draw(0, task.index, seed)
            group = make_group(self.me, release, drawn, completions, rewards, times)
            out.append((group, task.prompt, rewards))
        return out

    def _adopt(self) -> None:
        self.engine.load(self.learner.weights())


if __name__ == "__main__":
    sys.exit(main())
