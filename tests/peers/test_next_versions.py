"""A learner that releases next versions alone while most of the others make rounds: nobody goes on from them,
and it is named."""

from __future__ import annotations

from functools import cache

from peers.studies.adversaries import LIAR, Attacked, Overheard, scenario, spawn
from swarm.events import Event, Rejected, Released, Trained
from swarm.protocol import Topic
from swarm.sim.world import World

HONEST = ("learner-0", "learner-1", "learner-2")


@cache
def attacked() -> tuple[Event, ...]:
    told, heard = list[Event](), Overheard()
    one = Attacked(attack="a next version of its own", defended=True, seconds=20.0)
    World(scenario(one), lambda peer: spawn(peer, one.attack, heard), sinks=[told.append]).run()
    return tuple(told)


def test_no_release_goes_on_from_a_version_that_a_learner_made_beside_the_rounds_of_most() -> None:
    released = {event.release for event in attacked() if isinstance(event, Released)}
    false = {(one.version, one.weights) for one in released if one.publisher == LIAR}
    assert len(false) == 3
    honest = [one for one in released if one.publisher != LIAR]
    assert not [one for one in honest if (one.version - 1, one.parent) in false]
    steps = [event for event in attacked() if isinstance(event, Trained) and event.peer in HONEST]
    assert max(event.version for event in steps) > 12


def test_each_learner_names_it_and_nobody_else() -> None:
    named = [event for event in attacked() if isinstance(event, Rejected) and event.kind == Topic.RELEASE]
    assert {event.sender for event in named} == {LIAR}
    assert {event.peer for event in named} > {*HONEST}
