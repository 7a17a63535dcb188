"""Streams past p2pd, over real TCP under both event loops: who gets in, and what comes through."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import socket
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
import uvloop

from swarm.net.averaging import bypass
from swarm.net.averaging.bypass import RECORD, STRANGERS, SealedReader, SealedWriter, Ticket, TicketServer

ALICE = "who has the ticket"
HOST = "127.0.0.1"

Ended = pytest.raises(asyncio.IncompleteReadError)


@pytest.fixture(params=[asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def go(request: pytest.FixtureRequest) -> Callable[[Coroutine[Any, Any, None]], None]:
    def run(test: Coroutine[Any, Any, None]) -> None:
        async def main() -> None:
            async with asyncio.timeout(20):
                await test

        with asyncio.Runner(loop_factory=request.param) as runner:
            runner.run(main())

    return run


class Host:
    """A ticket server, and the other ends of the streams that came in."""

    def __init__(self, ticket_server: TicketServer) -> None:
        self.ticket_server, self.callers = ticket_server, list[str]()
        self.come = asyncio.Queue[tuple[SealedReader, SealedWriter]]()

    @classmethod
    async def opened(cls) -> Host:
        return cls(await TicketServer.opened(HOST, 0))

    def ticket(self) -> Ticket:
        return Ticket.read(self.ticket_server.ticket(ALICE, self._take).packed())

    async def _take(self, info: Any, reader: SealedReader, writer: SealedWriter) -> None:
        self.callers.append(info)
        self.come.put_nowait((reader, writer))


async def closed(reader: asyncio.StreamReader) -> bool:
    with contextlib.suppress(ConnectionResetError):
        return await reader.read(1) == b""
    return True


def test_bytes_come_in_their_order_both_ways_in_pieces_of_any_size(go: Callable[..., None]) -> None:
    async def send(writer: SealedWriter, data: bytes, rng: random.Random) -> None:
        rest = memoryview(data)
        while rest:
            size = rng.choice([1, 9, 70_000, RECORD, 3 * RECORD + 1])
            writer.writelines([rest[:3], rest[3:size]])
            rest = rest[size:] if size > 3 else rest[3:]
            await writer.drain()

    async def take(reader: SealedReader, size: int, rng: random.Random) -> bytes:
        got = bytearray()
        while len(got) < size:
            got += await reader.readexactly(
                min(rng.choice([1, 8, 5000, RECORD, 2 * RECORD]), size - len(got))
            )
        return bytes(got)

    async def test() -> None:
        host, rng = await Host.opened(), random.Random(1)
        reader, writer = await host.ticket().enter(HOST)
        its_reader, its_writer = await host.come.get()
        there, back = os.urandom(5_000_000), os.urandom(5_000_000)
        *_, came, returned = await asyncio.gather(
            send(writer, there, rng),
            send(its_writer, back, rng),
            take(its_reader, len(there), rng),
            take(reader, len(back), rng),
        )
        assert (came, returned) == (there, back)
        assert host.callers == [ALICE]
        writer.close()
        with Ended:
            await its_reader.readexactly(1)

    go(test())


@pytest.mark.parametrize("change", ["a byte", "order", "repeated", "left out", "size", "back to its sender"])
def test_whatever_is_changed_on_the_way_ends_the_stream(go: Callable[..., None], change: str) -> None:
    async def test() -> None:
        host = await Host.opened()
        ticket = host.ticket()
        mine, its = socket.socketpair()
        reader, writer = await asyncio.open_connection(sock=mine)
        caller = SealedWriter(writer, ticket.there)
        for word in (b"one", b"two", b"six"):
            caller.write(word)
        its.setblocking(False)
        loop, size = asyncio.get_running_loop(), 4 + 3 + bypass.TAG
        records = [await loop.sock_recv(its, size) for _ in range(3)]
        one, two, six = records
        sent = {
            "a byte": [one, two[:-1] + bytes([two[-1] ^ 1]), six],
            "order": [one, six, two],
            "repeated": [one, one, two],
            "left out": [one, six],
            "size": [one, (1 << 31).to_bytes(4, "big"), two],
            "back to its sender": [],
        }[change]
        if change == "back to its sender":
            await loop.sock_sendall(its, one)
            back = SealedReader(bypass.PartReader(reader, writer), ticket.back)
        else:
            _, other = await asyncio.open_connection(HOST, ticket.port)
            other.writelines([ticket.name, *sent])
            back, _ = await host.come.get()
            assert await back.readexactly(3) == b"one"
        with Ended:
            await back.readexactly(3)
        its.close()

    go(test())


@pytest.mark.parametrize("shown", ["none", "a used one", "an old one"])
def test_who_has_no_ticket_is_not_let_in(
    go: Callable[..., None], shown: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bypass, "TICKET", 0.1 if shown == "an old one" else 10.0)

    async def test() -> None:
        host = await Host.opened()
        ticket = host.ticket()
        if shown == "a used one":
            await ticket.enter(HOST)
            await host.come.get()
        if shown == "an old one":
            await asyncio.sleep(0.2)
        reader, writer = await asyncio.open_connection(HOST, ticket.port)
        writer.write((bytes(16) if shown == "none" else ticket.name) + bytes(100))
        assert await closed(reader)
        assert host.come.empty()

    go(test())


def test_strangers_are_few(go: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bypass, "HELLO", 3600.0)  # those that are there stay

    async def test() -> None:
        host = await Host.opened()
        port = host.ticket().port
        silent = [await asyncio.open_connection(HOST, port) for _ in range(STRANGERS)]
        while host.ticket_server._strangers < STRANGERS:
            await asyncio.sleep(0.01)
        one_more, _ = await asyncio.open_connection(HOST, port)
        assert await closed(one_more)
        assert host.ticket_server._strangers == STRANGERS
        for _, writer in silent:
            writer.close()
        assert all([await closed(reader) for reader, _ in silent])

    go(test())


def test_strangers_do_not_stay(go: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bypass, "HELLO", 0.5)

    async def test() -> None:
        host = await Host.opened()
        port = host.ticket().port
        silent = [await asyncio.open_connection(HOST, port) for _ in range(STRANGERS)]
        assert all([await closed(reader) for reader, _ in silent])
        await host.ticket().enter(HOST)
        await host.come.get()

    go(test())


def test_a_frame_beyond_the_limit_is_not_waited_for(go: Callable[..., None]) -> None:
    async def test() -> None:
        host = await Host.opened()
        reader, _ = await host.ticket().enter(HOST)
        with Ended:
            await reader.readexactly(bypass.FRAME_LIMIT + 1)

    go(test())
