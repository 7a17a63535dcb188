"""Gossip of offenders: it does not wait in a queue, nobody reads it, and a peer beside one hangs up."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from random import Random

from still_host import membership, still_host

from swarm import events
from swarm.core.gossip_limits import OFFENCES_BURST
from swarm.limits import EVENT_LIMIT
from swarm.net.memory.network import MemoryNetwork
from swarm.net.messaging.gossip import QUEUE, Mute, NoSubscriber, PubSub
from swarm.protocol import Role, Topic
from swarm.settings.config import DelayLaw
from swarm.sim.clock import run
from swarm.sim.links import SimLinks
from swarm.types import PeerId

FLOOD = PeerId("flood")


class Daemon:
    """Nobody publishes; each subscriber hears the same."""

    def __init__(self, *said: tuple[PeerId, bytes]) -> None:
        self.said = said

    async def publish(self, topic: str, message: bytes) -> None:
        """Nobody publishes."""

    async def listeners(self, topic: str) -> frozenset[PeerId]:
        """Nobody listens."""
        return frozenset()

    @asynccontextmanager
    async def subscribe(self, topic: str) -> AsyncIterator[AsyncIterator[tuple[PeerId, bytes]]]:
        async def messages() -> AsyncIterator[tuple[PeerId, bytes]]:
            for one in self.said:
                yield one
            await asyncio.Event().wait()

        yield messages()


def gossip_of(*said: tuple[PeerId, bytes]) -> PubSub:
    daemon = Daemon(*said)

    async def line() -> Daemon:
        return daemon

    return PubSub(PeerId("me"), line, "topic")


def test_a_flood_does_not_displace_what_others_said() -> None:
    async def scene() -> None:
        gossip = gossip_of((PeerId("honest"), b"here"), *[(FLOOD, b"x")] * (2 * QUEUE))
        gossip.guard(lambda author, size: author != FLOOD)
        async with gossip.subscribe("topic") as heard:
            assert await anext(heard) == ("honest", b"here")

    asyncio.run(scene())


def test_what_is_larger_than_any_gossip_is_not_heard_before_there_is_a_gate() -> None:
    most = bytes(EVENT_LIMIT.sealed)

    async def scene() -> None:
        gossip = gossip_of((PeerId("honest"), most), (FLOOD, most + b"x"), (PeerId("honest"), b"after"))
        async with gossip.subscribe("topic") as heard:
            assert [await anext(heard) for _ in range(2)] == [("honest", most), ("honest", b"after")]

    asyncio.run(scene())


def test_a_node_that_nobody_hears_connects_anew_less_and_less_often_until_somebody_does() -> None:
    unheard = NoSubscriber()
    assert unheard.over(0.0) is None
    due = [now for now in range(100) if unheard.due(float(now))]
    assert due == [10, 30, 70]
    assert unheard.over(100.0) == 100.0 and unheard.over(101.0) is None
    assert not unheard.due(200.0) and unheard.over(205.0) is None, "it was back before it was time"
    assert not unheard.due(300.0) and unheard.due(310.0)


def test_a_peer_without_a_stream_is_dialled_anew_less_and_less_often_until_it_has_one() -> None:
    mute, one, other = Mute(), PeerId("one"), PeerId("other")
    peers, none = {one, other}, frozenset[PeerId]()
    due = [now for now in range(40) if mute.due(peers, {other}, none, float(now)) == [one]]
    assert due == [1, 3, 7, 15, 31]
    assert not any(mute.due(peers, peers, none, float(now)) for now in range(40, 50))
    assert not mute.due(peers, {other}, none, 50.0) and mute.due(peers, {other}, none, 51.0) == [one]
    assert not any(mute.due(none, none, none, float(now)) for now in range(60, 70)), "nobody is connected"


def test_who_sends_heartbeats_listens_and_is_dialled_anew_where_p2pd_forgot_that() -> None:
    mute, one = Mute(), PeerId("one")
    mute.on_beat(one)
    silent = [mute.due({one}, {one}, set(), float(now)) for now in range(10)]
    assert not any(silent), "it may not listen yet: what came was of an earlier connection"
    mute.on_beat(one)
    assert [now for now in range(10, 20) if mute.due({one}, {one}, set(), float(now))] == [11, 13, 17]
    assert not any(mute.due({one}, {one}, {one}, float(now)) for now in range(20, 30))
    mute.due(set(), set(), set(), 30.0)
    assert not any(mute.due({one}, {one}, set(), float(now)) for now in range(31, 40)), "it was started again"


def test_who_says_what_no_program_says_is_suspended_and_others_are_heard() -> None:
    async def scene() -> None:
        told, bus = list[events.Event](), events.Bus()
        bus.add(told.append)
        async with MemoryNetwork(Random(1), SimLinks(DelayLaw(), 1e6, Random(1))) as network:
            learner = still_host(
                network, "learner", Role.LEARNER, membership=membership("learner", Role.LEARNER)
            )
            mine = still_host(network, "mine", Role.SAMPLER, bus=bus)
            flood = network.ports("flood", lambda kind: 0.0)
            listening = asyncio.create_task(mine.listen(Topic.BEAT, mine.presence.receive))
            await asyncio.sleep(1.0)
            for _ in range(3 * int(OFFENCES_BURST)):
                await flood.gossip.publish(mine.topic(Topic.BEAT), b"nonsense")
            await learner.ports.gossip.publish(learner.topic(Topic.BEAT), learner.beats.sealed())
            await asyncio.sleep(2.0)
            rejected = [event for event in told if isinstance(event, events.Rejected)]
            assert mine.roster.learners() == ["learner"] and mine.gossip_limits.suspended() == {"flood"}
            assert {event.sender for event in rejected} == {"flood"} and len(rejected) < 2 * OFFENCES_BURST
            assert sum("nothing of it is read for 30 s" in event.reason for event in rejected) == 1
            listening.cancel()

    run(scene())
