"""The ports' contract, run against both worlds: peers in memory on a virtual clock, and peers over hivemind
on a real one.

A property is a coroutine over a World; it must hold in both, so it may wait but never look at a clock that
only one has.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import random
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest
from liars import lie

from peers.runtime.traffic import Traffic
from swarm.frames.wire import topic
from swarm.net.blobs.store import Blobs
from swarm.net.memory.network import CONCURRENT, MemoryNetwork
from swarm.net.messaging.gossip import QUEUE
from swarm.net.ports import Busy, NetError, Refused, Silent, Unreachable
from swarm.net.turns import AnswerTurns
from swarm.settings.config import DelayLaw
from swarm.sim.clock import VirtualLoop
from swarm.sim.links import SimLinks
from swarm.storage.blocks import Blocks, digest_of
from swarm.types import Digest, PeerId

RUN = Digest(hashlib.sha256(b"contract").hexdigest())
MEMBER, NEWEST = topic(RUN, "member"), topic(RUN, "newest")
"""A real board takes the keys of its run alone."""


class Memory:
    """Three peers on links of about 50 ms."""

    stranger = PeerId("nobody")

    def __init__(self) -> None:
        self.loop: asyncio.AbstractEventLoop = VirtualLoop()
        links = SimLinks(DelayLaw(law="lognormal", seconds=0.05, shape=0.3), 12.5e6, random.Random(1))
        self._network = MemoryNetwork(random.Random(2), links)
        self.loop.run_until_complete(self._network.__aenter__())
        self.peers = [self._network.ports(name, lambda kind: 0.01) for name in ("one", "two", "three")]

    def close(self) -> None:
        self.loop.run_until_complete(self._network.__aexit__(None, None, None))


class Counted(Memory):
    """The same through what counts their traffic: a decorator keeps the contract."""

    def __init__(self) -> None:
        super().__init__()
        self.peers = [Traffic(0.0).counted(ports) for ports in self.peers]


class Hive:
    """Three real nodes on loopback, one loop for all properties: a node takes seconds to start."""

    # The id of a key that nobody runs.
    stranger = PeerId("12D3KooWQYV9dGMFoRzNStwpXztXaBUjtPqi6aU76ZgUriHhKust")

    def __init__(self) -> None:
        hive_world = pytest.importorskip("hive_world", exc_type=ImportError)
        self.loop: asyncio.AbstractEventLoop = asyncio.new_event_loop()
        self._world = hive_world.HiveWorld("contract")
        try:
            self.peers = self.loop.run_until_complete(self._world.ports(3))
        except BaseException:
            self.loop.run_until_complete(self._world.close())
            raise

    def close(self) -> None:
        self.loop.run_until_complete(self._world.close())


@pytest.fixture(scope="module", params=[Memory, Counted, Hive], ids=lambda kind: kind.__name__.lower())
def world(request: pytest.FixtureRequest) -> Iterator[Any]:
    world = request.param()
    yield world
    world.close()
    world.loop.close()


def hold(world: Any, promise: Callable[..., Awaitable[None]]) -> None:
    world.loop.run_until_complete(asyncio.wait_for(promise(*world.peers), 60))


async def no_more(messages: Any, seconds: float = 1.0) -> None:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(seconds):
            raise AssertionError(f"one message too many: {await anext(messages)!r}")


async def ready(publisher: Any, topic: str, *readers: Any) -> None:
    """A real mesh needs a moment to form: publish until everybody heard, then let what is on its way
    arrive."""
    for reader in readers:
        for _ in range(50):
            await publisher.gossip.publish(topic, b"ready?")
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(0.3):
                    await anext(reader)
                    break
        else:
            raise AssertionError(f"nothing published on {topic} arrives")
    for reader in readers:
        with contextlib.suppress(TimeoutError):
            while True:
                async with asyncio.timeout(0.5):
                    await anext(reader)


def test_a_published_message_reaches_every_other_subscriber_once_and_not_myself(world: Any) -> None:
    async def promise(one: Any, two: Any, three: Any) -> None:
        async with (
            one.gossip.subscribe("news") as mine,
            two.gossip.subscribe("news") as b,
            three.gossip.subscribe("news") as c,
        ):
            await ready(one, "news", b, c)
            await one.gossip.publish("news", b"hello")
            for reader in (b, c):
                async with asyncio.timeout(10):
                    assert await anext(reader) == (one.me, b"hello")
            for reader in (mine, b, c):
                await no_more(reader)

    hold(world, promise)


def test_a_peer_that_is_shut_out_learns_why_and_its_message_is_not_handled(world: Any) -> None:
    """A large one may break in the middle instead: nobody reads it to its end."""

    async def promise(one: Any, two: Any, three: Any) -> None:
        handled = []

        async def handle(sender: PeerId, message: bytes) -> bytes:
            handled.append(sender)
            return b"read"

        await one.mail.serve("guarded", handle)
        one.mail.guard(lambda peer, service: "go away" if (peer, service) == (two.me, "guarded") else None)
        for size in (0, 1000):
            with pytest.raises(Refused, match="go away"):
                await two.mail.send(one.me, "guarded", bytes(size))
        with pytest.raises((Refused, Unreachable)):
            await two.mail.send(one.me, "guarded", bytes(1 << 22))
        assert await three.mail.send(one.me, "guarded", b"") == b"read" and handled == [three.me]
        one.mail.guard(lambda peer, service: None)
        assert await two.mail.send(one.me, "guarded", b"") == b"read"

    hold(world, promise)


def test_a_slow_reader_loses_the_oldest(world: Any) -> None:
    async def promise(one: Any, two: Any, three: Any) -> None:
        async with two.gossip.subscribe("flood") as messages:
            await ready(one, "flood", messages)
            for k in range(2 * QUEUE):
                await one.gossip.publish("flood", str(k).encode())
                await asyncio.sleep(0.002)
            await asyncio.sleep(3)
            got = []
            with contextlib.suppress(TimeoutError):
                while True:
                    async with asyncio.timeout(1):
                        got.append(int((await anext(messages))[1]))
        assert len(got) < 2 * QUEUE and 0 not in got and 2 * QUEUE - 1 in got

    hold(world, promise)


def test_gossip_beyond_four_kibibytes_is_a_mistake_of_the_caller(world: Any) -> None:
    async def promise(one: Any, two: Any, three: Any) -> None:
        with pytest.raises(ValueError, match="4096"):
            await one.gossip.publish("news", bytes(4097))

    hold(world, promise)


def test_mail_arrives_from_its_sender_and_its_acknowledgement_comes_back(world: Any) -> None:
    async def promise(one: Any, two: Any, three: Any) -> None:
        async def answer(sender: PeerId, message: bytes) -> bytes:
            return sender.encode() + b" said " + message

        await two.mail.serve("echo", answer)
        assert await one.mail.send(two.me, "echo", b"hi") == one.me.encode() + b" said hi"

    hold(world, promise)


def test_a_refusal_carries_its_reason(world: Any) -> None:
    async def promise(one: Any, two: Any, three: Any) -> None:
        async def refuse(sender: PeerId, message: bytes) -> bytes:
            raise Refused("the inbox is full")

        await two.mail.serve("full", refuse)
        with pytest.raises(Refused, match="the inbox is full"):
            await one.mail.send(two.me, "full", b"hi")

    hold(world, promise)


def test_mail_to_nobody_is_unreachable(world: Any) -> None:
    async def promise(one: Any, two: Any, three: Any) -> None:
        with pytest.raises(Unreachable):
            await one.mail.send(world.stranger, "echo", b"hi", timeout=10)

    hold(world, promise)


def test_a_slow_handler_is_silent_when_the_time_is_up(world: Any) -> None:
    async def promise(one: Any, two: Any, three: Any) -> None:
        async def dawdle(sender: PeerId, message: bytes) -> bytes:
            await asyncio.sleep(5)
            return b"late"

        await two.mail.serve("slow", dawdle)
        since = asyncio.get_running_loop().time()
        with pytest.raises(Silent):
            await one.mail.send(two.me, "slow", b"hi", timeout=1.0)
        assert 0.9 < asyncio.get_running_loop().time() - since < 3

    hold(world, promise)


def test_a_peer_that_sends_nothing_is_silent_before_the_time_is_up(world: Any) -> None:
    async def promise(one: Any, two: Any, three: Any) -> None:
        async def dawdle(sender: PeerId, message: bytes) -> bytes:
            await asyncio.sleep(5)
            return b"late"

        await two.mail.serve("mute", dawdle)
        since = asyncio.get_running_loop().time()
        with pytest.raises(Silent, match="sent nothing for 1 s"):
            await one.mail.send(two.me, "mute", b"hi", timeout=30.0, idle=1.0)
        assert 0.9 < asyncio.get_running_loop().time() - since < 3

    hold(world, promise)


def test_who_gets_other_answers_of_a_service_meanwhile_waits_on(world: Any) -> None:
    async def promise(one: Any, two: Any, three: Any) -> None:
        async def wait(sender: PeerId, message: bytes) -> bytes:
            await asyncio.sleep(float(message))
            return message

        await two.mail.serve("steps", wait)
        calls = (
            one.mail.send(two.me, "steps", str(seconds).encode(), 30.0, idle=2.0)
            for seconds in (0.8, 1.6, 2.4, 3.2)
        )
        assert await asyncio.gather(*calls) == [b"0.8", b"1.6", b"2.4", b"3.2"]

    hold(world, promise)


def test_busy_is_a_refusal_of_its_own(world: Any) -> None:
    async def promise(one: Any, two: Any, three: Any) -> None:
        async def busy(sender: PeerId, message: bytes) -> bytes:
            raise Busy("in a minute")

        await two.mail.serve("busy", busy)
        with pytest.raises(Busy, match="in a minute"):
            await one.mail.send(two.me, "busy", b"hi")

    hold(world, promise)


def test_answers_that_have_turns_are_made_so_many_at_a_time(world: Any) -> None:
    async def promise(one: Any, two: Any, three: Any) -> None:
        working: list[int] = [0, 0]

        async def work(sender: PeerId, message: bytes) -> bytes:
            working[0] += 1
            working[1] = max(working)
            await asyncio.sleep(0.05)
            working[0] -= 1
            return message

        await two.mail.serve("turns", work, AnswerTurns(2))
        messages = [b"%d" % k for k in range(6)]
        assert (
            await asyncio.gather(*(one.mail.send(two.me, "turns", message) for message in messages))
            == messages
        )
        assert working[1] == 2

    hold(world, promise)


def test_64_messages_at_once_all_arrive(world: Any) -> None:
    async def promise(one: Any, two: Any, three: Any) -> None:
        async def answer(sender: PeerId, message: bytes) -> bytes:
            await asyncio.sleep(0.01)
            return message

        await two.mail.serve("many", answer)
        messages = [str(k).encode() for k in range(CONCURRENT)]
        answers = await asyncio.gather(
            *(one.mail.send(two.me, "many", message, timeout=30) for message in messages)
        )
        assert answers == messages

    hold(world, promise)


def test_a_message_of_one_mebibyte_arrives_whole(world: Any) -> None:
    async def promise(one: Any, two: Any, three: Any) -> None:
        async def answer(sender: PeerId, message: bytes) -> bytes:
            return digest_of(message).encode()

        await two.mail.serve("large", answer)
        message = random.Random(3).randbytes(1 << 20)
        assert await one.mail.send(two.me, "large", message) == digest_of(message).encode()

    hold(world, promise)


def test_a_record_is_readable_by_others_and_mine_alone(world: Any) -> None:
    async def promise(one: Any, two: Any, three: Any) -> None:
        assert await one.board.put(MEMBER, b"here", ttl=60)
        assert await two.board.put(MEMBER, b"there", ttl=60)
        assert dict(await three.board.get(MEMBER)) == {one.me: b"here", two.me: b"there"}

    hold(world, promise)


def test_a_record_expires(world: Any) -> None:
    async def promise(one: Any, two: Any, three: Any) -> None:
        await one.board.put(NEWEST, b"now", ttl=3)
        assert dict(await two.board.get(NEWEST)) == {one.me: b"now"}
        await asyncio.sleep(4)
        assert dict(await three.board.get(NEWEST)) == {}

    hold(world, promise)


def test_a_record_beyond_one_kibibyte_is_a_mistake_of_the_caller(world: Any) -> None:
    async def promise(one: Any, two: Any, three: Any) -> None:
        with pytest.raises(ValueError, match="1024"):
            await one.board.put(MEMBER, bytes(1025), ttl=60)

    hold(world, promise)


def test_work_runs_one_at_a_time_in_order(world: Any) -> None:
    async def promise(one: Any, two: Any, three: Any) -> None:
        seen: list[tuple[str, int]] = []

        def work(k: int) -> int:
            seen.append(("begins", k))
            sum(range(20_000))
            seen.append(("ends", k))
            return k

        assert await asyncio.gather(*(one.work.run("sample", work, k) for k in range(5))) == list(range(5))
        assert seen == [(what, k) for k in range(5) for what in ("begins", "ends")]

    hold(world, promise)


def test_a_signature_is_its_signers_alone(world: Any) -> None:
    one, two, three = world.peers
    signature = one.keyring.sign(b"words")
    assert two.keyring.verify(one.me, b"words", signature)
    assert not two.keyring.verify(three.me, b"words", signature)
    assert not two.keyring.verify(one.me, b"other words", signature)
    assert not two.keyring.verify(one.me, b"words", signature[:-1] + bytes([signature[-1] ^ 1]))


def test_blobs_travel_and_a_wrong_byte_is_noticed(world: Any) -> None:
    async def promise(one: Any, two: Any, three: Any) -> None:
        bad: list[PeerId] = []
        held = Blobs(one.mail)
        wants = Blobs(three.mail, on_bad=lambda peer, reason: bad.append(peer))
        blob = random.Random(4).randbytes(300_000)
        blocks = Blocks.of(blob)
        held.hold(1, blocks)

        await held.serve()
        await lie(two.mail, blob[:-1] + b"?")
        with pytest.raises(NetError, match="not"):
            await wants.fetch(1, blocks.root, blocks.size, [two.me])
        assert bad == [two.me]
        assert await wants.fetch(1, blocks.root, blocks.size, [two.me, one.me]) == blocks

    hold(world, promise)
