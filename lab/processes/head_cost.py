"""What checks of groups cost the demo, in a process of its own, for the row `heads`.

    python -m lab.processes.head_cost '{"model": ..., "heads": 4, "groups": 32, "turns": 5}'
        -> {"check", "replay", "learn", "sample", "sample_plain": [CPU seconds of a group], "load": [of a
            version that is replayed], "bytes", "plain": of a frame with and without heads, "large": [CPU
            seconds], "large_bytes", "large_plain"}

The demo's model samples groups of its own tasks, and a learner computes the gradient of a batch of them. A
large group has random tokens of a large vocabulary: a check takes as long whatever it finds.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from lab.swarms.partner import Answer, opened, say
from swarm.core.intake.curriculum import Draw
from swarm.draws import heads
from swarm.draws.replays import replay_group
from swarm.frames import wire
from swarm.membership.identity import Keyring
from swarm.settings import loading
from swarm.storage.weights import Weights
from swarm.types import Digest, Group, Noise, Release, Times

LARGE = (8, 512, 151_936)
"""Completions, tokens of each, vocabulary: Qwen's."""


def main() -> int:
    setup = opened()
    say(**_measured(Path(setup["model"]), setup["heads"], setup["groups"], setup["turns"]))
    return 0


def _measured(model: Path, count: int, groups: int, turns: int) -> Answer:
    import torch

    from peers.build.model import factory
    from swarm.tasks.catalog import source

    torch.set_num_threads(1)
    plain, headed = (
        loading.load(None, [f"run.sampling.heads={k}", "run.optimizer.lr=1e-3"]).config for k in (0, count)
    )
    tasks = [source(plain.run.task, plain.run.seed).task(number) for number in range(groups)]
    prompts, size = [task.prompt for task in tasks], plain.run.sampling.group_size
    genesis = Weights.of((model / "model.safetensors").read_bytes(), 0)
    learner, tokenization = factory.learner(model, headed)
    audited = factory.replay(model, plain)
    engines = [factory.hf(model, config) for config in (headed, plain)]
    learner.load(genesis)
    for engine in engines:
        engine.load(genesis)
    keyring = Keyring.new()
    made = [
        [
            _group(keyring, one, number)
            for number, one in enumerate(engine.sample(prompts, size, range(groups)))
        ]
        for engine in engines
    ]

    def check() -> None:
        for group in made[0]:
            if (problem := heads.contradiction(group, tokenization.vocabulary)) is not None:
                raise ValueError(problem)

    def learn() -> None:
        learner.gradient(made[0], prompts, [group.rewards for group in made[0]], time.time())

    def replay() -> None:
        for group, prompt in zip(made[1], prompts, strict=True):
            if replay_group(audited, prompt, group).margins.max() > audited.allowed.hard:
                raise ValueError("an honest group is off")

    audited.load(genesis)
    replay()  # the first groups go through the policy in another precision, too
    large = _large(count)
    seconds: dict[str, list[float]] = {}
    for _ in range(turns):
        calls: dict[str, tuple[Callable[[], Any], int]] = {
            "check": (check, groups),
            "replay": (replay, groups),
            "load": (lambda: audited.load(genesis), 1),
            "learn": (learn, groups),
            "sample": (lambda: engines[0].sample(prompts, size, range(groups)), groups),
            "sample_plain": (lambda: engines[1].sample(prompts, size, range(groups)), groups),
            "large": (lambda: heads.contradiction(large, LARGE[2]), 1),
        }
        for name, (call, of) in calls.items():
            began = time.process_time()
            call()
            seconds.setdefault(name, []).append((time.process_time() - began) / of)
    return {
        **seconds,
        "bytes": _bytes(keyring, made[0]),
        "plain": _bytes(keyring, made[1]),
        "large_bytes": _bytes(keyring, [large]),
        "large_plain": _bytes(keyring, [msgspec.structs.replace(large, heads=None)]),
    }


def _bytes(keyring: Keyring, groups: Sequence[Group]) -> float:
    """Of a frame."""
    return sum(len(wire.seal(group, "0" * 64, keyring)) for group in groups) / len(groups)


def _group(keyring: Keyring, completions: Any, number: int) -> Group:
    from peers.sampler.new_group import make_group

    now = time.time()
    weights = Digest("0" * 64)
    release = Release(
        version=0,
        weights=weights,
        size=1,
        parent=Digest(""),
        publisher=keyring.me,
        learners=1,
        groups=0,
        released=now,
    )
    times = Times(released=now, fetched=now, used=now, finished=now, sent=now)
    rewards = [float(k % 2) for k in range(len(completions.lengths))]
    return make_group(keyring.me, release, Draw(number, number, number), completions, rewards, times)


def _large(count: int) -> Group:
    """Consistent heads, and tokens that no noise draws."""
    from swarm.sample.base import Completions

    size, length, vocabulary = LARGE
    rng, places = np.random.default_rng(1), size * length
    first = rng.integers(0, vocabulary - count, (places, 1))
    p = np.sort(rng.dirichlet(np.ones(count + 1), places)[:, :count], 1)[:, ::-1]
    head = heads.pack(first + np.arange(count), np.log(p))
    completions = Completions(
        lengths=(length,) * size,
        tokens=first[:, 0].astype(np.int32),
        logprobs=np.log(p[:, 0]).astype(np.float32),
        texts=("",) * size,
        noise=Noise.GUMBEL,
        heads=head,
    )
    return _group(Keyring.new(), completions, 1)


if __name__ == "__main__":
    sys.exit(main())
