"""Peers that rest, in virtual time: the others neither wait for them nor send them groups, and they go on
where the swarm is."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from functools import cache
from typing import Any

from test_roles_swarm import EPOCH, Told, scenario

from peers.commands import sim
from peers.runtime.host import Host
from peers.runtime.rest import Reason
from swarm.events import Averaged, Event, Heard, Judged, Noted, Sampled, Trained
from swarm.protocol import Phase
from swarm.sim.world import SimPeer, World

BEGIN, END = 20.0, 60.0
PAUSED = Reason(Phase.PAUSED, "until it is told to go on")
AT_HAND = 5.0
"""Seconds that a round, or the groups at hand, may take beyond the beginning of a rest."""


@cache
def two_rest() -> Told:
    """Two learners and three samplers, of which one each rests for a while."""

    def begin(host: Host, parts: sim.PolicyParts) -> sim.RoleProgram:
        loop = asyncio.get_running_loop()
        loop.call_later(BEGIN, host.rest.set, PAUSED)
        loop.call_later(END, host.rest.set, None)
        return sim.role_of(host, parts)

    def spawn(peer: SimPeer) -> Coroutine[Any, Any, None]:
        return sim.run_peer(
            peer, sim.policy_parts(peer.config), begin if peer.name in ("learner-1", "sampler-0") else None
        )

    told = Told.__new__(Told)
    told.all = []
    told.outcome = World(scenario(1.7), spawn, sinks=[told.all.append]).run()
    return told


def phases(told: Told, peer: str) -> set[Phase]:
    """Of its heartbeats while it rests."""
    since, until = EPOCH + BEGIN + AT_HAND, EPOCH + END
    heard = [event for event in told.all if isinstance(event, Heard) and event.subject == peer]
    return {event.beat.phase for event in heard if since < event.at < until}


def during(told: Told, kind: type[Event], peer: str) -> list[Any]:
    return told.of(kind, peer, BEGIN + AT_HAND, END)


def test_a_resting_learner_says_so_and_takes_no_step() -> None:
    told = two_rest()
    assert phases(told, "learner-1") == {Phase.PAUSED}
    assert told.of(Trained, "learner-1", until=BEGIN) and not during(told, Trained, "learner-1")
    assert not during(told, Judged, "learner-1"), "no group is sent to it"


def test_nobody_waits_for_a_resting_learner() -> None:
    told = two_rest()
    steps = during(told, Trained, "learner-0")
    assert len(steps) > 5 and all(event.members == 1 and event.average < 0.5 for event in steps)


def test_a_learner_that_rested_is_in_rounds_again() -> None:
    told = two_rest()
    assert any(len(event.members) == 2 for event in told.of(Averaged, "learner-1", since=END))
    assert [event.text for event in told.of(Noted, "learner-1")] == [
        "learner-1 rests: until it is told to go on",
        "learner-1 goes on after a rest",
    ]


def test_a_resting_sampler_samples_nothing_and_goes_on_with_the_newest_policy() -> None:
    told = two_rest()
    assert phases(told, "sampler-0") == {Phase.PAUSED} and not during(told, Sampled, "sampler-0")
    assert during(told, Trained, "learner-0"), "the others' groups are trained on"
    newest = max(event.version for event in told.of(Trained, until=END))
    assert told.of(Sampled, "sampler-0", since=END)[0].version >= newest - 2
