"""hivemind's streams of a learner: from whom they are taken, and parts of a round at the pace of its line.

    stream of a peer that is not invited --> closed, nothing of it is read
    part --> PacedWriter --pieces--> p2pd --> ... p2pd --> PartReader --pieces--> PacedReader --> part

Only streams that carry parts are paced: who meets whom is small and must not wait. A reader that reads slowly
holds its sender back once the buffers between them are full (some hundred KiB). Not handled here: the pace
(swarm.net.rate).
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable
from typing import Any, cast

from hivemind.p2p import P2P, PeerID

from swarm.limits import FRAME_LIMIT
from swarm.net.rate import UNLIMITED, RateLimit, RateLimits

PARTS = "rpc_aggregate_part"
"""How the names of streams that carry parts end."""

EARLY = 1 << 18
"""Bytes that are received before somebody asks for them; then the sender is held back."""

Handler = Callable[[Any, Any, Any], Awaitable[None]]


class PartReader(asyncio.BufferedProtocol):
    """What hivemind asks of a stream's reader: a part is received into the memory where it stays, where
    asyncio's reader wakes up its task and moves the bytes thrice for each piece of it."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Takes the stream over from `reader`, with what that has received."""
        self._transport = cast(asyncio.Transport, writer.transport)
        self._transport.pause_reading()
        self._before: Any = self._transport.get_protocol()
        """It goes on to tell the writer when to wait, and when the stream is closed."""
        begun = bytes(reader._buffer)  # type: ignore[attr-defined]
        self._early = memoryview(bytearray(max(EARLY, len(begun))))
        self._early[: len(begun)] = begun
        self._from, self._to = 0, len(begun)
        """What nobody asked for yet, in `early`."""
        self._ended = reader.at_eof() or self._transport.is_closing()
        self._rest: memoryview | None = None
        """Of what is asked for, the part that has not come."""
        self._come: asyncio.Future[None]
        self._transport.set_protocol(self)
        self._read_on()

    async def readexactly(self, size: int) -> bytearray:
        """Raises asyncio.IncompleteReadError, also where a message claims to have more than any has."""
        if size > FRAME_LIMIT:
            raise asyncio.IncompleteReadError(b"", size)
        data = bytearray(size)
        have = min(size, self._to - self._from)
        data[:have] = self._early[self._from : self._from + have]
        self._from += have
        if self._from == self._to:
            self._from = self._to = 0
        if have < size:
            if self._ended:
                raise asyncio.IncompleteReadError(bytes(data[:have]), size)
            self._rest, self._come = memoryview(data)[have:], asyncio.get_running_loop().create_future()
            self._read_on()
            await self._come
        return data

    def _read_on(self) -> None:
        if not self._ended and self._to < len(self._early):
            self._transport.resume_reading()

    def get_buffer(self, hint: int) -> memoryview:
        return self._early[self._to :] if self._rest is None else self._rest

    def buffer_updated(self, size: int) -> None:
        if self._rest is None:
            self._to += size
            if self._to == len(self._early):
                self._transport.pause_reading()
        elif size < len(self._rest):
            self._rest = self._rest[size:]
        else:
            self._rest = None
            if not self._come.done():  # cancelled
                self._come.set_result(None)

    def eof_received(self) -> Any:
        self._end()
        return self._before.eof_received()

    def connection_lost(self, error: Exception | None) -> None:
        self._end()
        self._before.connection_lost(error)

    def _end(self) -> None:
        self._ended = True
        if self._rest is not None and not self._come.done():
            self._come.set_exception(asyncio.IncompleteReadError(b"", len(self._rest)))

    def pause_writing(self) -> None:
        self._before.pause_writing()

    def resume_writing(self) -> None:
        self._before.resume_writing()


class PacedReader:
    """What hivemind asks of a stream's reader."""

    def __init__(self, reader: PartReader, limit: RateLimit) -> None:
        self._reader, self._limit = reader, limit

    async def readexactly(self, size: int) -> bytes | bytearray:
        """Raises asyncio.IncompleteReadError."""
        if self._limit.rate == math.inf:
            return await self._reader.readexactly(size)
        pieces = list[bytearray]()
        for begin in range(0, size, self._limit.piece):
            pieces.append(await self._reader.readexactly(min(size - begin, self._limit.piece)))
            await self._limit.wait(len(pieces[-1]))
        return b"".join(pieces)


class PacedWriter:
    """What hivemind asks of a stream's writer: bytes leave in `drain`."""

    def __init__(self, writer: asyncio.StreamWriter, limit: RateLimit) -> None:
        self._writer, self._limit = writer, limit
        self._written = list[memoryview]()

    def write(self, data: bytes | memoryview) -> None:
        self._written.append(memoryview(data))

    async def drain(self) -> None:
        written, self._written = self._written, []
        if self._limit.rate == math.inf:
            self._writer.writelines(written)  # one call of the kernel's for many of hivemind's pieces
            await self._writer.drain()
            return
        for data in written:
            for begin in range(0, len(data), self._limit.piece):
                piece = data[begin : begin + self._limit.piece]
                await self._limit.wait(len(piece))
                self._writer.write(piece)
                await self._writer.drain()

    def close(self) -> None:
        self._writer.close()


class PacedP2P(P2P):  # type: ignore[misc]
    """Made by `replicate`; then `limits` may be set, and `answers`."""

    limits: RateLimits = UNLIMITED
    answers: Callable[[PeerID], bool] = staticmethod(lambda peer: True)
    """Whose streams are taken; others' are closed."""

    async def call_binary_stream_handler(self, peer_id: PeerID, handler_name: str) -> tuple[Any, Any, Any]:
        info, reader, writer = await super().call_binary_stream_handler(peer_id, handler_name)
        return info, *self._paced(handler_name, reader, writer)

    async def add_binary_stream_handler(self, name: str, handler: Handler, balanced: bool = False) -> None:
        async def paced(info: Any, reader: Any, writer: Any) -> None:
            if not self.answers(info.peer_id):
                return writer.close()  # type: ignore[no-any-return]
            await handler(info, *self._paced(name, reader, writer))

        await super().add_binary_stream_handler(name, paced, balanced=balanced)

    def _paced(self, name: str, reader: Any, writer: Any) -> tuple[Any, Any]:
        if not name.endswith(PARTS):
            return reader, writer
        return PacedReader(PartReader(reader, writer), self.limits.down), PacedWriter(writer, self.limits.up)
