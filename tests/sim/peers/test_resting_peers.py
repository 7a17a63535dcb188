"""Peers that rest, in virtual time: the others neither wait for them nor send them groups, and they go on
where the swarm is."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from functools import cache
from random import Random
from typing import Any

from role_swarms import EPOCH, Told, scenario
from still_host import still_host

from peers.commands import sim
from peers.runtime.host import Host
from peers.runtime.limits.pause_gate import PauseReason
from swarm.events import Averaged, Event, Heard, Judged, Noted, Sampled, Trained
from swarm.net.memory.network import MemoryNetwork
from swarm.protocol import Phase, Role
from swarm.settings.config import DelayLaw
from swarm.sim.clock import run
from swarm.sim.links import SimLinks
from swarm.sim.world import SimPeer, World

BEGIN, END = 20.0, 60.0
PAUSED = PauseReason(Phase.PAUSED, "until it is told to go on")
AT_HAND = 5.0
"""Seconds that a round, or the groups at hand, may take beyond the beginning of a rest."""


@cache
def two_rest() -> Told:
    """Two learners and three samplers, of which one each rests for a while."""

    def begin(host: Host, parts: sim.PolicyParts) -> sim.RoleProgram:
        loop = asyncio.get_running_loop()
        loop.call_later(BEGIN, host.pause_gate.set, PAUSED)
        loop.call_later(END, host.pause_gate.set, None)
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


# --- one peer -----------------------------------------------------------------------------------------------


def at_rest(body: Callable[[Host, list[Any]], Awaitable[None]]) -> None:
    """Play a scene of a sampler that samples, and what it tells."""

    async def main() -> None:
        async with MemoryNetwork(Random(1), SimLinks(DelayLaw(), 1e6, Random(1))) as network:
            host, told = still_host(network, "sampler-0", Role.SAMPLER), list[Any]()
            host.bus.add(told.append)
            host.status.phase, host.status.credit = Phase.SAMPLING, 7
            await body(host, told)

    run(main())


LIMITED = PauseReason(Phase.LIMITED, "the battery feeds this machine")


def test_a_rest_takes_the_phase_of_its_newest_reason_and_says_each_once() -> None:
    async def scene(host: Host, told: list[Any]) -> None:
        beats = list[Phase]()
        host.beat_now = lambda: beats.append(host.status.phase)  # type: ignore[method-assign]
        assert not await host.pause_gate.waited()
        host.pause_gate.set(PAUSED)
        resting = asyncio.create_task(host.pause_gate.waited())
        for reason in (PAUSED, PAUSED, LIMITED, LIMITED):
            host.pause_gate.set(reason)
            await asyncio.sleep(3 * host.config.run.pace.beat)
            assert (host.status.phase, host.status.credit) == (reason.phase, 0) and not resting.done()
        host.pause_gate.set(None)
        assert await resting and host.status.phase is Phase.SAMPLING
        assert beats == [Phase.PAUSED, Phase.LIMITED, Phase.SAMPLING]
        assert [event.text for event in told] == [
            f"sampler-0 rests: {PAUSED.text}",
            f"sampler-0 rests: {LIMITED.text}",
            "sampler-0 goes on after a rest",
        ]

    at_rest(scene)


def test_a_rest_begins_and_ends_as_soon_as_its_reason_does() -> None:
    async def scene(host: Host, told: list[Any]) -> None:
        waits = asyncio.create_task(host.changed(60.0))
        await asyncio.sleep(0)
        host.pause_gate.set(PAUSED)
        resting = asyncio.create_task(host.pause_gate.waited())
        await asyncio.sleep(0.01)
        assert waits.done(), "the role hears of it at once"
        host.pause_gate.set(None)
        began = host.now()
        assert await resting and host.now() == began

    at_rest(scene)


def test_a_role_that_may_not_rest_yet_hears_that_it_should_and_one_that_is_asked_to_stop_ends() -> None:
    async def scene(host: Host, told: list[Any]) -> None:
        host.pause_gate.set(PAUSED)
        began = host.now()
        assert await host.pause_gate.waited(may=False)
        resting = asyncio.create_task(host.pause_gate.waited())
        await asyncio.sleep(0.5)
        host.leave()
        assert await resting and await host.pause_gate.waited()
        assert host.now() == began + 0.5
        assert [event.text for event in told] == [
            f"sampler-0 rests: {PAUSED.text}",
            "sampler-0 goes on after a rest",
        ]

    at_rest(scene)
