"""Gossip reaches each connected peer, also where p2pd's stream to it was broken off. Real p2pd's."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable

from hive_world import HivePorts, HiveWorld, in_world

from swarm.frames.wire import topic
from swarm.net.libp2p.addresses import Address
from swarm.types import PeerId

DELAY = 0.25
"""Seconds of each way: what the two sides say to each other takes twice as long to be answered."""


class Line:
    """A TCP line to a port on loopback that is slow, and that can be held and cut."""

    def __init__(self, port: int) -> None:
        self._port, self._writers = port, list[asyncio.StreamWriter]()
        self._tasks = set[asyncio.Task[None]]()
        self.free = asyncio.Event()
        self.taken = 0
        """Connections that were made to it."""

    @contextlib.asynccontextmanager
    async def opened(self) -> AsyncIterator[int]:
        """Its own port."""
        server = await asyncio.start_server(self._carry, "127.0.0.1", 0)
        try:
            yield server.sockets[0].getsockname()[1]
        finally:
            server.close()
            self.cut()
            for task in self._tasks:
                task.cancel()

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.taken += 1
        there, back = await asyncio.open_connection("127.0.0.1", self._port)
        self._writers += [writer, back]
        for ends in ((reader, back), (there, writer)):
            self._tasks.add(asyncio.create_task(self._pass(*ends)))

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(1 << 16):
                await asyncio.sleep(DELAY)
                await self.free.wait()
                writer.write(data)
        writer.close()

    def cut(self) -> None:
        for writer in self._writers:
            writer.transport.abort()


async def until(holds: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(30):
        while not await holds():
            await asyncio.sleep(0.01)


def at(port: int, peer: PeerId) -> list[Address]:
    address = Address.parse(f"/ip4/127.0.0.1/tcp/{port}/p2p/{peer}")
    assert address is not None
    return [address]


@contextlib.asynccontextmanager
async def two_dials_of_which_one_is_broken_off(caller: HivePorts, called: HivePorts) -> AsyncIterator[None]:
    """Both sides dial at once. The connection that the called one has first is cut while its gossip opens a
    stream there; the other one stands until the end."""
    first, second = Line(called.node.port), Line(caller.node.port)
    dialling, dialled = await caller.node.line(), await called.node.line()

    async def connections(n: int) -> bool:
        return len((await dialled.direct()).get(caller.me, ())) == n

    async def mute() -> bool:
        return caller.me not in await dialled.listeners("")

    async with first.opened() as to_called, second.opened() as to_caller:
        dials = asyncio.gather(
            dialling.connect(called.me, at(to_called, called.me), 20),
            dialled.connect(caller.me, at(to_caller, caller.me), 20),
        )
        first.free.set()
        await until(lambda: connections(1))
        first.free.clear()
        second.free.set()
        await until(lambda: connections(2))
        first.cut()
        await until(mute)
        await dials
        assert await connections(1)
        yield


def test_gossip_goes_both_ways_though_one_of_two_connections_was_broken_off() -> None:
    """On each topic: at first one side has no stream, so that neither knows what the other one listens to;
    then an old connection may end when the new one stands."""

    async def body(world: HiveWorld) -> None:
        peers = caller, called = await world.start("caller"), await world.start("called")
        topics = topic(world.run, "beat"), topic(world.run, "event")
        heard = set[tuple[PeerId, str]]()

        async def receive(peer: HivePorts, name: str) -> None:
            async with peer.gossip.subscribe(name) as inbox:
                async for sender, _ in inbox:
                    heard.add((sender, name))

        async def all_is_heard() -> bool:
            for peer in peers:
                for name in topics:
                    await peer.gossip.publish(name, b"I am here")
            await asyncio.sleep(0.1)
            return len(heard) == len(peers) * len(topics)

        async with two_dials_of_which_one_is_broken_off(caller, called):
            caller.node.network.remember(called.me, called.addresses())
            called.node.network.remember(caller.me, caller.addresses())
            listening = [asyncio.create_task(receive(peer, name)) for peer in peers for name in topics]
            try:
                await until(all_is_heard)
            finally:
                for task in listening:
                    task.cancel()

    in_world(body)


def test_a_peer_with_two_addresses_is_dialled_at_one_at_a_time() -> None:
    """Of two dials libp2p breaks off the later one, on which the other side's gossip may have begun."""

    async def body(world: HiveWorld) -> None:
        caller, called = await world.start("caller"), await world.start("called")
        lines, dialling = [Line(called.node.port), Line(called.node.port)], await caller.node.line()
        async with lines[0].opened() as one, lines[1].opened() as other:
            for line in lines:
                line.free.set()
            reached = await asyncio.gather(
                *(dialling.reach(address) for port in (one, other) for address in at(port, called.me))
            )
            assert reached == ["", ""]
            knocks = 2
            assert sum(line.taken for line in lines) == knocks + 1

    in_world(body)
