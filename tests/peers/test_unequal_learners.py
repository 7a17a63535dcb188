"""Learners of different speed: each has the share of the batch that it can take in by the round."""

from __future__ import annotations

from collections import Counter
from functools import cache

import msgspec
import pytest
from test_roles_swarm import Told, scenario, seconds

from lab.rows import unequal as row
from peers.commands import sim
from swarm.events import Averaged, Event, Trained, Unreached
from swarm.settings.config import BatchSize
from swarm.sim.scenario import Scenario
from swarm.sim.world import World


def unequal(learners: int, slower: float, minutes: float = 1.5) -> Scenario:
    """Groups enough, each of which takes 0.5 s to learn on; the last learner takes longer."""
    plain = scenario(minutes, (learners, 12), batch=BatchSize(groups=12, close_after=3.0))
    last = {f"learner-{learners - 1}": slower}
    return msgspec.structs.replace(
        plain, prices=plain.prices | {"learn": seconds(0.5)}, each=("learn",), slower=last
    )


@cache
def slow_third() -> Told:
    return Told(unequal(3, 2.5))


def test_a_slow_learner_is_in_the_rounds_with_a_smaller_share() -> None:
    told = slow_third()
    rounds = [len(event.members) for event in told.of(Averaged, "learner-0", since=30)]
    assert len(rounds) > 12 and Counter(rounds)[3] >= 0.9 * len(rounds)
    groups = {
        peer: sum(event.groups for event in told.of(Trained, peer, since=30))
        for peer in ("learner-0", "learner-1", "learner-2")
    }
    assert 2 * groups["learner-2"] < groups["learner-1"] <= 1.2 * groups["learner-0"]


def test_a_slow_learner_is_better_than_none() -> None:
    def groups(told: Told) -> int:
        return sum(event.groups for event in told.of(Trained, since=30))

    assert groups(Told(unequal(3, 2.5, minutes=3.0))) > 1.05 * groups(Told(unequal(2, 1.0, minutes=3.0)))


def test_who_is_late_at_first_is_in_the_rounds_later() -> None:
    """Nobody knows its speed, so it is late for the first rounds; who takes that for staying away is in other
    rounds than those who do not."""
    told = list[Event]()
    World(row.scene(4, 2.5, 3.0), sim.spawn, sinks=[told.append]).run()
    assert not [event for event in told if isinstance(event, Unreached)]
    rounds = [len(event.members) for event in told if isinstance(event, Averaged)]
    assert set(rounds[-12:]) == {4}


@cache
def of_three() -> float:
    return row.played(3, 1.0, 10.0).groups


@pytest.mark.slow
@pytest.mark.parametrize("slower", [1.5, 2.0, 2.5, 3.0, 3.5, 4.0, 5.0])
def test_a_fourth_learner_is_better_than_none_however_much_slower_it_is(slower: float) -> None:
    assert row.played(4, slower, 10.0).groups > of_three()


@pytest.mark.slow
def test_the_row_says_what_a_slower_learner_adds() -> None:
    (figure,) = row.measure(lambda _: None, slower=(2.0,), minutes=4.0)
    assert figure.other is not None and figure.value > figure.other
