"""Row `unequal`: what a fourth learner adds that is as fast as the others, or slower.

    three learners, or four of which one is slower -> World -> groups trained and versions an hour

The roles that ship, in virtual time, with the toy task's table: a group takes 2 s to learn on, and samplers
give more than is taken. Not handled here: lines between learners (row `rounds`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from lab.figures.table import Figure
from peers.commands import sim
from swarm.events import Event, Trained
from swarm.protocol import Kind, Role
from swarm.settings.config import BatchSize, DelayLaw, Optimizer, Run, Sampling, TaskSettings
from swarm.sim.scenario import Scenario
from swarm.sim.world import World

if TYPE_CHECKING:
    from lab.figures.table import Say

SLOWER = (1.0, 2.0, 5.0)
"""How many times as long as the others the fourth learner takes for a group."""

MINUTES, BEGINNING = 10.0, 1.0
"""Of virtual time, and those that do not count: learners find out how fast they are."""


class Played(NamedTuple):
    groups: float
    """Trained in an hour."""
    versions: float
    """In an hour."""


def measure(say: Say, slower: Sequence[float] = SLOWER, minutes: float = MINUTES) -> list[Figure]:
    say("three learners")
    three = played(3, 1.0, minutes)
    found = list[Figure]()
    for times in slower:
        say(f"a fourth that is {times:g} times slower")
        four = played(4, times, minutes)
        found.append(
            Figure(
                row="unequal",
                what=f"four learners, one {times:g} times slower: groups trained",
                value=four.groups,
                unit="an hour",
                against="the other three alone",
                other=three.groups,
                note=f"versions an hour: {four.versions:.0f}, of three {three.versions:.0f}",
            )
        )
    return found


def scene(learners: int, slower: float, minutes: float) -> Scenario:
    return Scenario(
        name="unequal",
        hours=minutes / 60,
        peers={Role.SEED.value: 1, Role.LEARNER.value: learners, Role.SAMPLER.value: 14},
        prices={
            Kind.SAMPLE.value: DelayLaw(law="lognormal", seconds=4.0, shape=0.4, longest=60.0),
            Kind.LEARN.value: DelayLaw(law="lognormal", seconds=2.0, shape=0.05, longest=40.0),
            Kind.LOAD.value: DelayLaw(law="constant", seconds=0.5),
        },
        each=(Kind.LEARN.value,),
        slower={f"learner-{learners - 1}": slower},
        run=Run(
            name="unequal",
            batch=BatchSize(groups=16),
            task=TaskSettings(name="toy"),
            sampling=Sampling(max_tokens=4),
            optimizer=Optimizer(lr=0.05),
        ),
    )


def played(learners: int, slower: float, minutes: float) -> Played:
    told: list[Event] = []
    World(scene(learners, slower, minutes), sim.spawn, sinks=[told.append]).run()
    start = min(event.at for event in told) + 60 * BEGINNING
    steps = [event for event in told if isinstance(event, Trained) and event.at >= start]
    hours = (minutes - BEGINNING) / 60
    versions = {event.version for event in steps}
    return Played(sum(event.groups for event in steps) / hours, len(versions) / hours)
