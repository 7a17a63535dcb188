"""A stream's bytes, received into the memory where they stay.

    reader and writer of asyncio --PartReader--> readexactly

Not handled here: what the bytes say.
"""

from __future__ import annotations

import asyncio
from typing import Any, cast

from swarm.limits import FRAME_LIMIT

EARLY = 1 << 18
"""Bytes that are received before somebody asks for them; then the sender is held back."""


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
