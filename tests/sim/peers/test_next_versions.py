"""A learner that releases next versions alone while most of the others make rounds: nobody goes on from them,
and it is named."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from unittest import mock

import msgspec
import pytest
from broken_rounds import Broken
from role_swarms import Told, scenario
from unequal_learners import unequal
from version_liars import HONEST, LIAR

from lab.studies.liars import adversaries
from lab.studies.liars.adversaries import Attacked, Overheard
from lab.studies.liars.false_publishers import RELEASES
from swarm.events import Event, Rejected, Released, Trained
from swarm.protocol import Topic
from swarm.sim.world import World
from swarm.types import Digest, Release

ATTACKS: dict[str, Callable[[Release], tuple[int, Digest]]] = {
    "the next one": RELEASES["a next version of its own"],
    "one beside the newest": lambda newest: (newest.version, newest.parent),
}
"""Version and parent of what the liar announces, by the newest release that it knows."""


@cache
def attacked(attack: str) -> tuple[Event, ...]:
    told, heard = list[Event](), Overheard(3)
    one = Attacked(attack="a next version of its own", defended=True, seconds=18.0)
    with mock.patch.dict(RELEASES, {one.attack: ATTACKS[attack]}):
        World(
            adversaries.scenario(one),
            lambda peer: adversaries.spawn(peer, one, heard),
            sinks=[told.append],
        ).run()
    return tuple(told)


@pytest.mark.parametrize("attack", ATTACKS)
def test_no_release_goes_on_from_a_version_that_a_learner_made_beside_the_rounds_of_most(attack: str) -> None:
    released = {event.release for event in attacked(attack) if isinstance(event, Released)}
    false = {(one.version, one.weights) for one in released if one.publisher == LIAR}
    assert len(false) == 3
    honest = [one for one in released if one.publisher != LIAR]
    assert not [one for one in honest if (one.version - 1, one.parent) in false]
    steps = [event for event in attacked(attack) if isinstance(event, Trained) and event.peer in HONEST]
    assert max(event.version for event in steps) > 8


@pytest.mark.parametrize("attack", ATTACKS)
def test_each_learner_names_it_and_nobody_else(attack: str) -> None:
    told = attacked(attack)
    named = [event for event in told if isinstance(event, Rejected) and event.kind == Topic.RELEASE]
    assert {event.sender for event in named} == {LIAR}
    assert {event.peer for event in named} > {*HONEST}


def test_of_learners_whose_rounds_break_now_and_then_nobody_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    Broken(monkeypatch, 10, versions=0.1, calls=0.1)
    told = Told(scenario(0.9, (3, 4)))
    steps = told.of(Trained)
    assert {1, 3} <= {event.members for event in steps} and max(event.version for event in steps) > 15
    assert not told.of(Rejected)


def test_a_learner_goes_on_without_slow_ones_once_these_are_no_witnesses_any_more() -> None:
    slow = {"learner-1": 6.0, "learner-2": 6.0}
    told = Told(msgspec.structs.replace(unequal(3, 6.0), slower=slow))
    members = {event.members for event in told.of(Trained)}
    assert 3 in members and min(members) < 3
    assert not told.of(Rejected)
