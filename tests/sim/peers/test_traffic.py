"""What passes is counted once, by purpose and by peer, and told in an event that fits a gossip message."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from itertools import pairwise
from typing import Any

import pytest

from peers.commands import sim
from peers.runtime.frames import Frames
from peers.runtime.membership.run_keys import RunKeys
from peers.runtime.traffic import ANSWERED, LINKS_PER_EVENT, RTT_SPAN, TIMED_UP_TO, CountedMail, Traffic
from swarm import events
from swarm.frames import wire
from swarm.frames.run_types import Delegation, Membership
from swarm.limits import EVENT_LIMIT
from swarm.net.memory.network import MemoryKeyring, MemoryNetwork
from swarm.net.ports import Ports, Refused, Silent, Unreachable
from swarm.protocol import Role
from swarm.settings.config import BatchSize, Delay, DelayLaw, Optimizer, Pace, Run, Sampling, TaskSettings
from swarm.sim.clock import run
from swarm.sim.links import SimLinks
from swarm.sim.scenario import Fault, Scenario
from swarm.sim.world import World
from swarm.types import Digest, PeerId

SECONDS = 0.05
"""A link's latency, one way."""


def between_two(promise: Callable[[Ports, Traffic, Ports, Traffic], Awaitable[None]]) -> None:
    async def main() -> None:
        links = SimLinks(DelayLaw(law="constant", seconds=SECONDS), 1e6, random.Random(1))
        async with MemoryNetwork(random.Random(2), links) as network:
            one, two = (network.ports(name, lambda kind: 0.0) for name in ("one", "two"))
            mine, theirs = (Traffic(ports.clock.now()) for ports in (one, two))
            await promise(mine.counted(one), mine, theirs.counted(two), theirs)

    run(main())


def answers(size: int) -> Callable[[PeerId, bytes], Awaitable[bytes]]:
    async def answer(sender: PeerId, message: bytes) -> bytes:
        return bytes(size)

    return answer


@pytest.mark.parametrize(
    ("service", "asked", "answered"),
    [
        ("groups", "rollouts", "other"),
        ("blobs", "other", "weights"),
        ("states", "other", "gradients"),
        ("newest", "other", "other"),
    ],
)
def test_a_request_and_its_answer_are_counted_once_at_either_end(
    service: str, asked: str, answered: str
) -> None:
    async def promise(one: Ports, mine: Traffic, two: Ports, theirs: Traffic) -> None:
        await two.mail.serve(service, answers(70))
        await one.mail.send(two.me, service, bytes(1000))
        here, there = (traffic.drain(one.clock.now(), ()) for traffic in (mine, theirs))
        assert here is not None and there is not None
        passed = {"asked": Counter({asked: 1000}), "answered": Counter({answered: 70})}
        assert Counter(here["sent"]) == Counter(there["received"]) == passed["asked"]
        assert Counter(here["received"]) == Counter(there["sent"]) == passed["answered"]
        assert {peer: link.received for peer, link in here["links"].items()} == {two.me: {answered: 70}}
        assert {peer: link.received for peer, link in there["links"].items()} == {one.me: {asked: 1000}}

    between_two(promise)


def test_what_a_relay_carries_between_others_came_in_and_went_out_once() -> None:
    traffic = Traffic(0.0)
    told = [traffic.drain(float(at), (), carried) for at, carried in enumerate((0, 500, 500, 700), 1)]
    sums = [one and (one["sent"], one["received"], one["links"]) for one in told]
    assert sums == [None, ({"carried": 500},) * 2 + ({},), None, ({"carried": 200},) * 2 + ({},)]


def test_gossip_is_counted_where_it_is_published_and_where_it_is_heard() -> None:
    async def promise(one: Ports, mine: Traffic, two: Ports, theirs: Traffic) -> None:
        async with two.gossip.subscribe("news") as messages:
            await one.gossip.publish("news", bytes(300))
            assert await anext(messages) == (one.me, bytes(300))
        here, there = (traffic.drain(one.clock.now(), ()) for traffic in (mine, theirs))
        assert here is not None and there is not None
        assert here["sent"] == {"gossip": 300} and there["received"] == {"gossip": 300} and not there["links"]

    between_two(promise)


def test_what_was_refused_went_out_and_what_reached_nobody_did_not() -> None:
    async def promise(one: Ports, mine: Traffic, two: Ports, theirs: Traffic) -> None:
        async def refuse(sender: PeerId, message: bytes) -> bytes:
            raise Refused("full")

        async def sleep(sender: PeerId, message: bytes) -> bytes:
            await asyncio.sleep(60.0)
            return b""

        await two.mail.serve("groups", refuse)
        await two.mail.serve("blobs", sleep)
        with pytest.raises(Refused):
            await one.mail.send(two.me, "groups", bytes(500))
        with pytest.raises(Silent):
            await one.mail.send(two.me, "blobs", bytes(70), timeout=5.0)
        with pytest.raises(Unreachable):
            await one.mail.send(PeerId("nobody"), "groups", bytes(9000))
        told = mine.drain(one.clock.now(), ())
        assert told is not None and told["sent"] == {"rollouts": 500, "other": 70}

    between_two(promise)


def test_the_fastest_small_answer_of_the_last_minute_is_told() -> None:
    async def promise(one: Ports, mine: Traffic, two: Ports, theirs: Traffic) -> None:
        await two.mail.serve("newest", answers(10))
        await two.mail.serve("blobs", answers(TIMED_UP_TO + 1))

        async def fastest(*services: str) -> Any:
            for service in services:
                await one.mail.send(two.me, service, b"")
            told = mine.drain(one.clock.now(), ())
            assert told is not None
            return told["links"][two.me].rtt

        assert await fastest("blobs") == 0.0, "a big answer's time is its size's"
        assert await fastest("newest", "blobs") == pytest.approx(2 * SECONDS, abs=1e-3)
        mine.answered(two.me, 0.02)
        assert await fastest("newest") == 0.02
        await asyncio.sleep(RTT_SPAN / 2)
        assert await fastest("newest") == 0.02
        await asyncio.sleep(RTT_SPAN)
        assert await fastest("newest") == pytest.approx(2 * SECONDS, abs=1e-3)

    between_two(promise)


def test_nothing_is_told_when_nothing_passed_and_nothing_is_told_twice() -> None:
    traffic = Traffic(100.0)
    assert traffic.drain(110.0, ()) is None
    traffic.averaged({PeerId("a"): 40, PeerId("b"): 0})
    told = traffic.drain(115.0, {PeerId("a")})
    assert told is not None
    assert told["seconds"] == 5.0 and told["sent"] == told["received"] == {"gradients": 40}
    assert told["links"][PeerId("a")].relayed and not told["links"][PeerId("b")].relayed
    assert traffic.drain(120.0, ()) is None


def test_a_dozen_links_with_every_purpose_fit_a_members_gossip_message() -> None:
    traffic, me = Traffic(0.0), PeerId("12D3KooW" + "m" * 44)
    for k in range(40):
        for purpose in ("rollouts", "weights", "gradients", "other"):
            traffic.received(purpose, (1 << 45) + k, PeerId("12D3KooW" + f"{k:044}"))
            traffic.sent(purpose, 1 << 45)
        traffic.answered(PeerId("12D3KooW" + f"{k:044}"), 0.123456789 + k)
    traffic.gossiped = 1 << 45
    told = traffic.drain(1_750_000_000.123, ())
    assert told is not None and len(told["links"]) == LINKS_PER_EVENT
    assert all(
        peer.endswith(f"{k:02}")
        for peer, k in zip(told["links"], range(39, 39 - LINKS_PER_EVENT, -1), strict=True)
    )
    event = events.Transferred(at=1_750_000_000.123, peer=me, **told)
    delegation = Delegation(
        role=Role.LEARNER, expires=1 << 40, key=bytes(32), signature=random.Random(1).randbytes(64)
    )
    membership = Membership(peer=me, delegation=delegation, signature=random.Random(2).randbytes(64))
    frames = Frames(Digest("5" * 64), MemoryKeyring(me), membership, RunKeys(bytes(32)))
    assert len(frames.seal([event], EVENT_LIMIT)) < EVENT_LIMIT.sealed
    assert len(wire.encode([event])) < EVENT_LIMIT.sealed - 900, "it fits without compression too"


# --- a simulated swarm --------------------------------------------------------------------------------------


def told_by(minutes: float, *faults: Fault, delay: Delay | None = None) -> list[events.Event]:
    settings = Run(
        name="traffic",
        task=TaskSettings(name="toy"),
        sampling=Sampling(group_size=4, max_tokens=4),
        optimizer=Optimizer(lr=0.1),
        batch=BatchSize(groups=8, close_after=3.0),
        pace=Pace(beat=1.0, patience=5.0),
    )
    prices = {
        kind: DelayLaw(law="constant", seconds=cost)
        for kind, cost in {"sample": 1.0, "learn": 0.5, "load": 0.1}.items()
    }
    told: list[events.Event] = []
    peers = {"seed": 1, "learner": 2, "sampler": 3, "evaluator": 1}
    world = Scenario(
        name="traffic",
        seed=1,
        hours=minutes / 60,
        peers=peers,
        run=settings,
        prices=prices,
        faults=faults,
        delay=delay or Delay(),
    )
    World(world, sim.spawn, sinks=[told.append]).run()
    return told


def test_every_byte_of_a_swarm_is_sent_by_one_peer_and_received_by_another() -> None:
    told = [event for event in told_by(1.0) if isinstance(event, events.Transferred)]
    sent, received = Counter[str](), Counter[str]()
    from_peer: dict[tuple[str, str], Counter[str]] = {}
    for event in told:
        sent.update(event.sent)
        received.update(event.received)
        for peer, link in event.links.items():
            from_peer.setdefault((peer.split("-")[0], event.peer.split("-")[0]), Counter()).update(
                link.received
            )
    assert set(sent) == {"rollouts", "weights", "gradients", "gossip", "other"}
    for purpose in ("rollouts", "weights", "gradients"):
        # What is on its way when the time is up was sent and not received, or not told yet.
        assert received[purpose] == pytest.approx(sent[purpose], rel=0.1)
    assert from_peer["sampler", "learner"]["rollouts"] == received["rollouts"]
    assert from_peer["learner", "learner"]["gradients"] == received["gradients"]
    assert from_peer["learner", "sampler"]["weights"] > 0 and not from_peer["learner", "sampler"]["rollouts"]
    ways = [
        link.rtt
        for event in told
        for peer, link in event.links.items()
        if link.rtt and peer.startswith("learner")
    ]
    assert ways and all(0.0 < rtt < 1.0 for rtt in ways)


def test_a_peer_tells_of_its_traffic_every_five_heartbeats() -> None:
    told = [
        event.at
        for event in told_by(0.45)
        if isinstance(event, events.Transferred) and event.peer == "sampler-0"
    ]
    assert len(told) == 5 and all(after - before == pytest.approx(5.0) for before, after in pairwise(told))


def test_a_learners_state_that_another_takes_over_counts_as_gradients(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    passed = Counter[str]()
    send = CountedMail.send

    async def watched(
        self: CountedMail, to: PeerId, service: str, data: bytes, *rest: Any, **more: Any
    ) -> bytes:
        answer = await send(self, to, service, data, *rest, **more)
        passed[service] += len(answer)
        return answer

    monkeypatch.setattr(CountedMail, "send", watched)
    told_by(0.8, Fault(at=20, fault="bounce", peer="learner-1", down=3))
    assert passed["states"] > passed["state"] > 0
    assert ANSWERED["states"] == "gradients"
