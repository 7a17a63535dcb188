"""A learner among others whose gradients are wrong: the roles that ship, on the ports of memory, in virtual
time."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean
from typing import Any

import pytest
import torch

from peers.commands import sim
from swarm.events import Averaged, Event, Trained
from swarm.net.memory.network import MemoryAverager
from swarm.settings.config import Averaging, BatchSize, DelayLaw, Optimizer, Run, Sampling, TaskSettings
from swarm.sim.scenario import Scenario
from swarm.sim.world import World


def played(versions: int, monkeypatch: pytest.MonkeyPatch, times: float) -> list[Event]:
    """Four learners, of which the last one averages `times` its gradient, and twelve samplers."""
    honest = MemoryAverager.average

    async def average(self: MemoryAverager, version: int, tensors: Sequence[torch.Tensor], *rest: Any) -> Any:
        for tensor in tensors if self._me == "learner-3" else ():
            tensor.mul_(times)
        return await honest(self, version, tensors, *rest)

    monkeypatch.setattr(MemoryAverager, "average", average)
    run = Run(
        name="bad",
        task=TaskSettings(name="toy"),
        sampling=Sampling(group_size=4, max_tokens=4),
        optimizer=Optimizer(lr=0.3),
        batch=BatchSize(groups=16, close_after=3.0),
        averaging=Averaging(match=2.0, deadline=6.0, chunk=3.0),
    )
    scenario = Scenario(
        name="bad",
        hours=versions / 3600,
        peers={"seed": 1, "learner": 4, "sampler": 12},
        run=run,
        prices={
            "sample": DelayLaw(law="lognormal", seconds=1.0, shape=0.3),
            "learn": DelayLaw(law="constant", seconds=0.3),
        },
    )
    told: list[Event] = []
    World(scenario, sim.spawn, sinks=[told.append]).run()
    return told


def reward(told: list[Event]) -> float:
    return fmean([event.metrics["reward"] for event in told if isinstance(event, Trained)][-16:])


@pytest.mark.nightly
def test_one_of_four_learners_with_minus_a_thousand_times_its_gradient_ends_no_training_and_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told = played(45, monkeypatch, -1000.0)
    rounds = [event for event in told if isinstance(event, Averaged)]
    assert sum(event.scaled.keys() == {"learner-3"} for event in rounds) > 0.8 * len(rounds) > 100
    # an honest one that is far from the others is scaled now and then, as in the test below
    assert len([event for event in rounds if event.scaled.keys() - {"learner-3"}]) <= 0.1 * len(rounds)
    assert reward(told) > 0.7


def test_honest_learners_are_scaled_in_few_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    rounds = [event for event in played(18, monkeypatch, 1.0) if isinstance(event, Averaged)]
    # gradients of a group or two each: one of fifty rounds has somebody far from the others (docs/trust.md)
    assert len(rounds) > 40 and len([event for event in rounds if event.scaled]) <= 0.05 * len(rounds)
