"""Scenarios in which the roles that ship learn a table, and the events of one that was played."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from peers.commands import sim
from swarm.core.gradient_checks.recomputed import Rechecks
from swarm.events import Event, Judged
from swarm.settings.config import (
    Averaging,
    BatchSize,
    Delay,
    DelayLaw,
    Optimizer,
    Run,
    Sampling,
    TaskSettings,
)
from swarm.sim.scenario import Fault, Scenario
from swarm.sim.world import World

EPOCH = 1_750_000_000.0


def scenario(
    minutes: float = 2.0,
    peers: tuple[int, int] = (2, 3),
    *faults: Fault,
    delay: Delay | None = None,
    seed: int = 1,
    sample: float = 1.0,
    **run: Any,
) -> Scenario:
    """A seed, `peers` = (learners, samplers), and a table that learns in some twenty versions."""
    settings: dict[str, Any] = {
        "name": "roles",
        "task": TaskSettings(name="toy"),
        "sampling": Sampling(group_size=4, max_tokens=4),
        "optimizer": Optimizer(lr=0.1),
        "batch": BatchSize(groups=8, close_after=3.0),
        "averaging": Averaging(match=2.0, deadline=6.0, chunk=3.0),
    }
    return Scenario(
        name="roles",
        hours=minutes / 60,
        peers={"seed": 1, "learner": peers[0], "sampler": peers[1]},
        seed=seed,
        prices={
            "sample": DelayLaw(law="lognormal", seconds=sample, shape=0.3),
            "learn": DelayLaw(law="constant", seconds=0.3),
        },
        run=Run(**(settings | run)),
        faults=faults,
        delay=delay or Delay(),
    )


class Told:
    """A scenario's events."""

    def __init__(self, played: Scenario, disks: Path | None = None) -> None:
        self.all: list[Event] = []
        self.outcome = World(played, sim.spawn, sinks=[self.all.append], disks=disks).run()

    def of(self, kind: type[Any], peer: str = "", since: float = 0.0, until: float = 1e9) -> list[Any]:
        found = (event for event in self.all if isinstance(event, kind) and since <= event.at - EPOCH < until)
        return [event for event in found if event.peer.startswith(peer)]

    def verdicts(self) -> Counter[str]:
        return Counter(event.verdict.value for event in self.of(Judged))


def without_rechecks(patch: pytest.MonkeyPatch) -> None:
    """Learners compute no gradient of another one again: for what is timed to the second."""
    patch.setattr(Rechecks, "due", lambda *_: None)


def seconds(value: float) -> DelayLaw:
    return DelayLaw(law="constant", seconds=value)
