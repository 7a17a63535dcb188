"""Parts of a round from a stream, under both event loops: every byte in its order, whatever the pieces."""

from __future__ import annotations

import asyncio
import os
import random
import socket
from collections.abc import Awaitable, Callable

import pytest
import uvloop

from swarm.net.averaging.bypass import EARLY, PartReader

Talk = Callable[[PartReader, asyncio.StreamWriter, socket.socket], Awaitable[None]]


@pytest.fixture(params=[asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def talk(request: pytest.FixtureRequest) -> Callable[..., None]:
    def run(talk: Talk, begun: bytes = b"") -> None:
        async def main() -> None:
            mine, other = socket.socketpair()
            other.setblocking(False)
            reader, writer = await asyncio.open_unix_connection(sock=mine)
            if begun:
                await asyncio.get_running_loop().sock_sendall(other, begun)
                assert await reader.readexactly(1) == begun[:1]
            async with asyncio.timeout(20):
                await talk(PartReader(reader, writer), writer, other)
            writer.close()
            other.close()

        with asyncio.Runner(loop_factory=request.param) as runner:
            runner.run(main())

    return run


def test_bytes_come_in_their_order_in_pieces_of_any_size(talk: Callable[..., None]) -> None:
    rng, data = random.Random(1), os.urandom(12 * EARLY)

    async def send(other: socket.socket) -> None:
        rest = memoryview(data)
        while rest:
            size = rng.choice([1, 9, 700, EARLY, 3 * EARLY])
            await asyncio.get_running_loop().sock_sendall(other, rest[:size])
            rest = rest[size:]
            await asyncio.sleep(rng.choice([0, 0.001]))

    async def both(reader: PartReader, writer: asyncio.StreamWriter, other: socket.socket) -> None:
        sending, got = asyncio.ensure_future(send(other)), bytearray()
        while len(got) < len(data):
            size = rng.choice([1, 8, 5000, EARLY - 1, EARLY, 2 * EARLY])
            got += await reader.readexactly(min(size, len(data) - len(got)))
            await asyncio.sleep(rng.choice([0, 0.001]))
        await sending
        assert got == data

    talk(both)


def test_what_came_before_is_not_lost(talk: Callable[..., None]) -> None:
    async def both(reader: PartReader, writer: asyncio.StreamWriter, other: socket.socket) -> None:
        assert await reader.readexactly(8) == b"and what"
        other.sendall(b" follows")
        assert await reader.readexactly(8) == b" follows"

    talk(both, b":and what")


def test_who_asks_for_nothing_holds_the_sender_back(talk: Callable[..., None]) -> None:
    async def both(reader: PartReader, writer: asyncio.StreamWriter, other: socket.socket) -> None:
        data = os.urandom(16 * EARLY)
        sending = asyncio.ensure_future(asyncio.get_running_loop().sock_sendall(other, data))
        done, _ = await asyncio.wait({sending}, timeout=0.2)
        assert not done
        assert await reader.readexactly(len(data)) == data
        await sending

    talk(both)


def test_the_end_of_a_stream_ends_the_wait_for_a_part(talk: Callable[..., None]) -> None:
    async def both(reader: PartReader, writer: asyncio.StreamWriter, other: socket.socket) -> None:
        waiting = asyncio.ensure_future(reader.readexactly(EARLY))
        other.sendall(b"not all of it")
        await asyncio.sleep(0.01)
        other.close()
        for again in (waiting, reader.readexactly(1)):
            with pytest.raises(asyncio.IncompleteReadError):
                await again

    talk(both)


def test_a_writer_still_waits_for_a_slow_other_side(talk: Callable[..., None]) -> None:
    async def both(reader: PartReader, writer: asyncio.StreamWriter, other: socket.socket) -> None:
        writer.write(bytes(16 * EARLY))
        draining = asyncio.ensure_future(writer.drain())
        done, _ = await asyncio.wait({draining}, timeout=0.1)
        assert not done
        left = 16 * EARLY
        while left:
            left -= len(await asyncio.get_running_loop().sock_recv(other, 1 << 20))
        await draining

    talk(both)


def test_a_stream_that_ended_before_it_was_taken_over_is_at_its_end(talk: Callable[..., None]) -> None:
    async def both(_: PartReader, writer: asyncio.StreamWriter, other: socket.socket) -> None:
        mine, its = socket.socketpair()
        its.sendall(b":and what")
        its.close()
        reader, writing = await asyncio.open_unix_connection(sock=mine)
        assert await reader.readexactly(1) == b":"
        await asyncio.sleep(0.02)
        taken = PartReader(reader, writing)
        assert await taken.readexactly(8) == b"and what"
        with pytest.raises(asyncio.IncompleteReadError):
            await taken.readexactly(1)
        writing.close()

    talk(both)


def test_no_memory_is_taken_for_what_a_message_only_claims_to_have(talk: Callable[..., None]) -> None:
    async def claim(reader: PartReader, writer: asyncio.StreamWriter, other: socket.socket) -> None:
        with pytest.raises(asyncio.IncompleteReadError):
            await reader.readexactly(1 << 62)

    talk(claim)
