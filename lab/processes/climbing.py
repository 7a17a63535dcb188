"""Baselines of the rows `accuracy` and `real`: one process trains from the start until the held-out accuracy
is reached.

    python -m lab.processes.climbing '{"model": ..., "who": "process", "target": 0.6, "every": 5,
                                              "tasks": 256, "seconds": 100, "config": "", "threads": 1}'
        -> {"seconds", "cpu", "versions", "accuracy"} of the first examination that reached the target,
           or {"failed": why}

`process` samples and trains in turn (baseline_process), `trl` is TRL's GRPOTrainer (baseline_trl). Every so
many versions both have their policy examined as an evaluator does: greedy answers of the engine `hf` to the
same held-out tasks. Neither wall nor CPU seconds run meanwhile.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lab.processes import baseline_trl
from lab.processes.baseline_process import SampleAndTrain
from lab.swarms.local_swarm import settings
from lab.swarms.partner import Answer, opened, say
from swarm.settings.config import Config
from swarm.tasks.base import distinct


class Climb:
    """Versions, wall and CPU seconds since its begin, and the accuracy of the last examination."""

    def __init__(self, setup: Answer, examine: Callable[[], float]) -> None:
        """`examine()` is the accuracy of the policy as it is."""
        self._setup, self._examine = setup, examine
        self.versions, self.accuracy = 0, 0.0
        self._began, self._cpu = time.perf_counter(), time.process_time()

    @property
    def seconds(self) -> float:
        return time.perf_counter() - self._began

    @property
    def cpu(self) -> float:
        return time.process_time() - self._cpu

    def stepped(self) -> bool:
        """After a version. True where the target is reached, or the time over."""
        self.versions += 1
        if self.versions % self._setup["every"] == 0:
            seconds, cpu = self.seconds, self.cpu
            self.accuracy = self._examine()
            self._began, self._cpu = time.perf_counter() - seconds, time.process_time() - cpu
        return self.reached or self.seconds > self._setup["seconds"]

    @property
    def reached(self) -> bool:
        return bool(self.accuracy >= self._setup["target"])

    def answer(self) -> Answer:
        if not self.reached:
            return {"failed": f"{self.accuracy:.0%} after {self.versions} versions in {self.seconds:.0f} s"}
        return {
            "seconds": self.seconds,
            "cpu": self.cpu,
            "versions": self.versions,
            "accuracy": self.accuracy,
        }


def main() -> int:
    import torch

    setup = opened()
    torch.set_num_threads(setup["threads"])
    say(**{"process": _in_turn, "trl": _trl}[setup["who"]](setup))
    return 0


def accuracy(engine: Any, source: Any, tasks: int, right: float) -> float:
    """Share of the first held-out tasks whose greedy answer is right, as peers.evaluator counts it."""
    asked = distinct(source, tasks)
    answers = engine.greedy([task.prompt for task in asked])
    rewards = [source.rewards(task, [text])[0] for task, text in zip(asked, answers, strict=True)]
    return sum(reward >= right for reward in rewards) / len(rewards)


def _in_turn(setup: Answer) -> Answer:
    loop = SampleAndTrain(Path(setup["model"]), config=setup["config"])
    right = loop.config.run.evaluation.right
    climb = Climb(setup, lambda: accuracy(loop.engine, loop.source, setup["tasks"], right))
    while True:
        loop.turn()
        if climb.stepped():
            return climb.answer()


def _trl(setup: Answer) -> Answer:
    try:
        import trl
    except ImportError as error:
        return {"failed": baseline_trl.missing(error)}
    model, config = Path(setup["model"]), settings(config=setup["config"])
    with tempfile.TemporaryDirectory(prefix="swarm-bench-") as folder:
        count = _Examined()
        trainer = baseline_trl.trainer(trl, config.run, model, Path(folder), count)
        count.climb = climb = Climb(setup, _examination(model, config, trainer, setup["tasks"]))
        trainer.train()
        return {**climb.answer(), "trl": trl.__version__}


def _examination(model: Path, config: Config, trainer: Any, tasks: int) -> Callable[[], float]:
    from peers.build.model import factory
    from swarm.learn.files.weights import release_bytes
    from swarm.learn.models import tokenization
    from swarm.storage.weights import Weights
    from swarm.tasks import catalog
    from swarm.tasks.rendered import Rendered

    engine = factory.hf(model, config)
    render = tokenization.of_run(model, config.run).render_all
    source = Rendered(catalog.source(config.run.task, config.run.seed), render)

    def examine() -> float:
        engine.load(Weights.of(release_bytes(trainer.model), 0))
        return accuracy(engine, source, tasks, config.run.evaluation.right)

    return examine


class _Examined:
    """What baseline_trl's trainer reports to."""

    climb: Climb

    def sampled(self, tokens: int, reward: float) -> None:
        """Nothing: the accuracy shows how good it is."""

    def stepped(self) -> bool:
        return self.climb.stepped()


if __name__ == "__main__":
    sys.exit(main())
