"""Learners of different speed: each has the share of the batch that it can take in by the round."""

from __future__ import annotations

from collections import Counter
from functools import cache

import msgspec
import pytest
from role_swarms import Told
from unequal_learners import unequal

from peers.commands import sim
from swarm.events import Averaged, Event, Rejected, Trained, Unreached
from swarm.protocol import Kind, Role
from swarm.settings.config import BatchSize, DelayLaw, Optimizer, Run, Sampling, TaskSettings
from swarm.sim.scenario import Scenario
from swarm.sim.world import World


@cache
def slow_third() -> Told:
    return Told(unequal(3, 2.5, 1.25))


def test_a_slow_learner_is_in_the_rounds_with_a_smaller_share() -> None:
    told = slow_third()
    rounds = [len(event.members) for event in told.of(Averaged, "learner-0", since=25)]
    assert len(rounds) > 12 and Counter(rounds)[3] >= 0.9 * len(rounds)
    groups = {
        peer: sum(event.groups for event in told.of(Trained, peer, since=25))
        for peer in ("learner-0", "learner-1", "learner-2")
    }
    assert 2 * groups["learner-2"] < groups["learner-1"] <= 1.2 * groups["learner-0"]


def test_a_slow_learner_is_better_than_none() -> None:
    def groups(told: Told) -> int:
        return sum(event.groups for event in told.of(Trained, since=25))

    assert groups(slow_third()) > 1.05 * groups(Told(unequal(2, 1.0, 1.25)))


def scene(learners: int, slower: float, minutes: float) -> Scenario:
    """A group takes 2 s to learn on, and samplers give more than is taken; the last learner takes longer."""
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


def trained(learners: int, slower: float, minutes: float) -> int:
    """Groups, after the first minute."""
    told: list[Event] = []
    World(scene(learners, slower, minutes), sim.spawn, sinks=[told.append]).run()
    start = min(event.at for event in told) + 60
    return sum(event.groups for event in told if isinstance(event, Trained) and event.at >= start)


def test_who_is_late_at_first_is_in_the_rounds_later() -> None:
    """Nobody knows its speed, so it is late for the first rounds; who takes that for staying away is in other
    rounds than those who do not."""
    told = list[Event]()
    World(scene(4, 2.5, 2.5), sim.spawn, sinks=[told.append]).run()
    assert not [event for event in told if isinstance(event, Unreached)]
    rounds = [len(event.members) for event in told if isinstance(event, Averaged)]
    assert rounds[-12:].count(4) >= 9, "each round is told by its members"


def test_a_learner_goes_on_without_slow_ones_that_are_late_for_its_rounds() -> None:
    slow = {"learner-1": 6.0, "learner-2": 6.0}
    told = Told(msgspec.structs.replace(unequal(3, 6.0), slower=slow))
    members = {event.members for event in told.of(Trained)}
    assert 3 in members and min(members) < 3
    assert not told.of(Rejected)


@cache
def of_three() -> int:
    return trained(3, 1.0, 10.0)


@pytest.mark.nightly
@pytest.mark.parametrize("slower", [1.5, 2.0, 2.5, 3.0, 3.5, 4.0, 5.0])
def test_a_fourth_learner_is_better_than_none_however_much_slower_it_is(slower: float) -> None:
    assert trained(4, slower, 10.0) > of_three()
