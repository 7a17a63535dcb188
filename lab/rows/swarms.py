"""Row `swarms`: what share of their time learners compute, in six simulated swarms on lines of their own.

    scenario -> World -> Trained, Sampled, Adopted events -> useful share, versions an hour, groups, lag
    the same without lines                                -> what it could be

The roles that ship, in virtual time, with releases, patches, groups and rounds as large as a real model's
(swarm.sim.stand_in). Prices of work are those of the scenarios, not measured. Not handled here: graphics
cards, how well a policy learns.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from statistics import mean, quantiles
from typing import TYPE_CHECKING

import msgspec

from lab.figures.table import Figure, Unmeasured, number
from peers.commands import sim
from peers.commands.parsing import shipped
from swarm.events import Adopted, Event, RoundBroke, Sampled, Trained
from swarm.protocol import Role
from swarm.sim import scenario
from swarm.sim.scenario import Scenario, role_of
from swarm.sim.world import World

if TYPE_CHECKING:
    from lab.figures.table import Say

SWARMS = ("one-home", "two-homes", "two-homes-sites", "two-labs", "four-homes-lora", "lab-8b")
"""Scenarios that ship."""

ENDLESS = 1e12
"""Bytes per second."""


def measure(say: Say, names: Sequence[str] = SWARMS, hours: float | None = None) -> list[Figure]:
    """`hours` of each, by default as many as its scenario says."""
    import torch

    torch.set_num_threads(1)
    found: list[Figure] = []
    for name in names:
        scene = scenario.load(shipped.scenario(Path(name)))
        scene = scene if hours is None else msgspec.structs.replace(scene, hours=hours)
        say(f"{name}: {sum(scene.peers.values())} peers for {scene.hours:g} virtual hours, twice")
        found += _swarm(name, played(scene), played(unlimited(scene)))
    return found


def unlimited(scene: Scenario) -> Scenario:
    """The same swarm on lines that carry everything at once."""
    links = msgspec.structs.replace(scene.links, bandwidth=ENDLESS)
    return msgspec.structs.replace(scene, lines={}, links=links)


class Useful:
    """A sink that counts what was of use between the first and the last version."""

    def __init__(self, scene: Scenario) -> None:
        self._scene = scene
        self.steps: list[Trained] = []
        self.broken, self.sampled = 0, 0
        self.ages: list[float] = []
        """Seconds from a release to its adoption by each sampler."""
        self.cpu = 0.0

    def __call__(self, event: Event) -> None:
        match event:
            case Trained():
                self.steps.append(event)
            case RoundBroke():
                self.broken += 1
            case Sampled() if self.steps:
                self.sampled += 1
            case Adopted() if role_of(event.peer) is Role.SAMPLER and event.version:
                self.ages.append(event.age)

    @property
    def seconds(self) -> float:
        return self.steps[-1].at - self.steps[0].at

    @property
    def later(self) -> list[Trained]:
        """Steps of which the whole round was counted, by any learner."""
        return [step for step in self.steps if step.version > self.steps[0].version]

    @property
    def share(self) -> float:
        """Of the learners' time."""
        return sum(step.learn + step.step for step in self.later) / (
            self.seconds * self._scene.peers[Role.LEARNER]
        )

    @property
    def versions(self) -> float:
        """An hour."""
        return (self.steps[-1].version - self.steps[0].version) / self.seconds * 3600

    def text(self) -> str:
        trained = sum(step.groups for step in self.later)
        lag = mean(step.metrics["lag_versions"] for step in self.later if step.groups)
        late = quantiles(self.ages, n=20)[-1] if len(self.ages) > 1 else 0.0
        return (
            f"{trained} groups trained of {self.sampled} sampled, {number(lag)} versions old; 95 % of"
            f" adoptions within {number(late)} s; {self.broken} rounds broke; {number(self.cpu)} CPU s for"
            f" {self._scene.hours:g} h of {sum(self._scene.peers.values())} peers"
        )


def played(scene: Scenario) -> Useful:
    """Raises Unmeasured where there were no two versions."""
    useful, began = Useful(scene), time.process_time()
    World(scene, sim.spawn, sinks=[useful]).run()
    useful.cpu = time.process_time() - began
    if not useful.steps or not useful.later:
        raise Unmeasured(f"{scene.name}: no two versions in {scene.hours:g} hours")
    return useful


def _swarm(name: str, lines: Useful, none: Useful) -> list[Figure]:
    return [
        Figure(
            row="swarms",
            what=f"{name}: useful share of its learners' time",
            value=100 * lines.share,
            unit="% of their time",
            against="lines without an end",
            other=100 * none.share,
            note=lines.text(),
        ),
        Figure(
            row="swarms",
            what=f"{name}: versions",
            value=lines.versions,
            unit="an hour",
            against="lines without an end",
            other=none.versions,
        ),
    ]
