"""A learner on two devices in a swarm beside one on a single device: real ranks, simulated network."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from peers.build.model import factory
from peers.commands import sim
from swarm.events import CaughtUp, Event, Faulted, Recovered, Released, Trained
from swarm.learn.fsdp.learner import ShardedLearner
from swarm.learn.learners.base_learner import Gradient
from swarm.learn.models import tokenization
from swarm.settings.config import Averaging, BatchSize, Config, DelayLaw, Run, Sampling
from swarm.sim.scenario import Scenario
from swarm.sim.world import World


class Split(ShardedLearner):
    """Loses a rank in its third gradient."""

    gradients = 0

    def gradient(self, *args: Any) -> Gradient:
        self.gradients += 1
        if self.gradients == 3 and self._ranks is not None:
            os.kill(self._ranks._children[0].pid, signal.SIGKILL)
        return super().gradient(*args)


@pytest.mark.timeout(900)
def test_a_learner_on_two_devices_has_the_policy_of_one_on_a_single_device_and_outlives_a_rank(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: list[Split] = []
    calls: list[Path] = []
    real = factory.learner

    def some_split(model: Path, config: Config) -> Any:
        calls.append(model)
        if len(calls) == 2:  # the first is the seed's
            made.append(Split(model, config.run, ["cpu", "cpu"]))
            return made[0], tokenization.of_run(model, config.run)
        return real(model, config)

    monkeypatch.setattr(factory, "learner", some_split)
    run = Run(
        name="split",
        sampling=Sampling(group_size=4),
        batch=BatchSize(groups=6, close_after=3.0),
        averaging=Averaging(match=2.0, deadline=6.0, chunk=3.0),
    )
    constant = {
        name: DelayLaw(law="constant", seconds=seconds) for name, seconds in (("sample", 1.0), ("learn", 0.3))
    }
    played = Scenario(
        name="split", hours=12 / 3600, peers={"seed": 1, "learner": 2, "sampler": 3}, prices=constant, run=run
    )
    told: list[Event] = []
    World(played, sim.spawn, sinks=[told.append]).run()
    made[0].close()
    faults = [event for event in told if isinstance(event, Faulted)]
    assert [event.part for event in faults] == [
        "learner"
    ] and "rank 0 of 2 (cpu) ended its process with signal SIGKILL" in faults[0].detail
    split = faults[0].peer
    after = [event for event in told if event.peer == split and event.at >= faults[0].at]
    assert any(isinstance(event, CaughtUp) for event in after) and any(
        isinstance(event, Recovered) for event in after
    )
    together = {event.version for event in told if isinstance(event, Trained) and event.members == 2}
    assert len({e.version for e in after if isinstance(e, Trained)} & together) > 2
    released: dict[int, set[str]] = {}
    for event in told:
        if isinstance(event, Released):
            released.setdefault(event.release.version, set()).add(event.release.weights)
    assert all(len(digests) == 1 for version, digests in released.items() if version in together)
