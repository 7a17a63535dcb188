"""Streams past p2pd for parts of a round: TCP between two averager processes, with keys that went through it.

    caller --p2pd--> TicketServer: a ticket (port, name, a key for each direction), good once and for TICKET
                     seconds
    caller --TCP---> TicketServer: the ticket's name; a greeting comes back, and records pass between the
                     caller and the handler that p2pd's stream would have had
    record: length of the rest (4) | AES-256-GCM of the stream's bytes; nonces count the records

p2pd takes more of the processor for the same bytes than all else (docs/network.md). libp2p proves to both
sides the other's identity, and carries the ticket encrypted to that peer alone, so a caller that presents its
name is that peer. Invariants: a byte that is changed, left out, repeated or moved ends the stream; of a
caller without a ticket no more is read than a name, for HELLO seconds at most. Not handled: which streams go
this way, and at what pace (swarm.net.averaging.paced).
"""

from __future__ import annotations

import asyncio
import os
import struct
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, NamedTuple, cast

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from swarm.core.agreement.shares import LARGEST_PART
from swarm.limits import FRAME_LIMIT

TICKET = 10.0
"""Seconds for which a ticket is good: its peer connects at once."""

HELLO = 5.0
"""Seconds for the name of a ticket to come."""

STRANGERS = 64
"""Connections that have not shown a ticket yet; further ones are closed at once."""

RECORD = LARGEST_PART + (1 << 12)
"""Bytes of a stream in a record: a part and its header."""

TAG = 16
"""Bytes that AES-GCM adds to a record."""

NAME, KEY = 16, 32
"""Bytes of a ticket's name, and of each of its keys."""

GREETING = b"enter"
"""The first bytes from a TicketServer: at the address of a router, some other program may answer."""

_LENGTH, _TICKET = struct.Struct("!I"), struct.Struct(f"!H{NAME}s{KEY}s{KEY}s")

TICKET_SIZE = _TICKET.size
"""Bytes of a ticket."""


Handler = Callable[[Any, Any, Any], Awaitable[None]]
"""Takes the peer at the other end of a stream, its reader and its writer."""


EARLY = 1 << 18
"""Bytes that are received before they are read; then the sender is held back."""


class Ticket(NamedTuple):
    """What lets one connection in."""

    port: int
    name: bytes
    there: bytes
    """Key of the caller's direction."""
    back: bytes

    @classmethod
    def new(cls, port: int) -> Ticket:
        return cls(port, os.urandom(NAME), os.urandom(KEY), os.urandom(KEY))

    @classmethod
    def read(cls, data: bytes) -> Ticket:
        return cls(*_TICKET.unpack(data))

    def packed(self) -> bytes:
        return _TICKET.pack(*self)

    async def enter(self, host: str) -> tuple[SealedReader, SealedWriter]:
        """The stream that this ticket is for. Raises OSError, or EOFError where another server answers."""
        reader, writer = await asyncio.open_connection(host, self.port)
        try:
            writer.write(self.name)
            sealed = SealedReader(PartReader(reader, writer), self.back)
            await sealed.readexactly(len(GREETING))
        except BaseException:
            writer.close()
            raise
        return sealed, SealedWriter(writer, self.there)


class TicketServer:
    """Accepts callers with a ticket."""

    def __init__(self) -> None:
        self._port, self._strangers = 0, 0
        self._expected: dict[bytes, tuple[Ticket, Any, Handler]] = {}

    @classmethod
    async def opened(cls, host: str, port: int) -> TicketServer:
        """Listens there; port 0 is a free one. Raises OSError."""
        self = cls()
        # asyncio takes `::` for IPv6 alone, p2pd for both.
        server = await asyncio.start_server(self._enter, None if host == "::" else host, port)
        self._port = server.sockets[0].getsockname()[1]
        return self

    def ticket(self, caller: Any, handler: Handler) -> Ticket:
        """A new one, for a stream to `handler`, which gets `caller` as p2pd named it here."""
        ticket = Ticket.new(self._port)
        self._expected[ticket.name] = ticket, caller, handler
        asyncio.get_running_loop().call_later(TICKET, self._expected.pop, ticket.name, None)
        return ticket

    async def _enter(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        expected = await self._shown(reader) if self._strangers < STRANGERS else None
        if expected is None:
            return writer.close()
        ticket, caller, handler = expected
        sealed = SealedWriter(writer, ticket.back)
        sealed.write(GREETING)
        await handler(caller, SealedReader(PartReader(reader, writer), ticket.there), sealed)

    async def _shown(self, reader: asyncio.StreamReader) -> tuple[Ticket, Any, Handler] | None:
        """The caller and handler of the connection's ticket."""
        self._strangers += 1
        try:
            async with asyncio.timeout(HELLO):
                return self._expected.pop(await reader.readexactly(NAME), None)
        except (TimeoutError, OSError, EOFError):
            return None
        finally:
            self._strangers -= 1


class PartReader(asyncio.BufferedProtocol):
    """What hivemind asks of a stream's reader: a part is received into the memory where it stays, where
    asyncio's reader wakes up its task and moves the bytes thrice for each piece of it."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Takes the stream over from `reader`, with the bytes that it has received."""
        self._transport = cast(asyncio.Transport, writer.transport)
        self._transport.pause_reading()
        self._before: Any = self._transport.get_protocol()
        """It still signals to the writer when to wait, and when the stream is closed."""
        begun = bytes(reader._buffer)  # type: ignore[attr-defined]
        self._early = memoryview(bytearray(max(EARLY, len(begun))))
        self._early[: len(begun)] = begun
        self._from, self._to = 0, len(begun)
        """Unread bytes, in `early`."""
        self._ended = reader.at_eof() or self._transport.is_closing()
        self._rest: memoryview | None = None
        """The missing part of the current read."""
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


class SealedReader:
    """What hivemind asks of a stream's reader."""

    def __init__(self, reader: PartReader, key: bytes) -> None:
        self._reader, self._cipher, self._records = reader, AESGCM(key), 0
        self._open = memoryview(b"")
        """Unread bytes of the last record."""

    async def readexactly(self, size: int) -> bytes | memoryview:
        """Raises asyncio.IncompleteReadError, also where the received bytes are not those that were sent."""
        if size > FRAME_LIMIT:
            raise asyncio.IncompleteReadError(b"", size)
        pieces = list[memoryview]()
        while size:
            if not self._open:
                self._open = memoryview(await self._record())
            pieces.append(self._open[:size])
            self._open, size = self._open[size:], size - len(pieces[-1])
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    async def _record(self) -> bytes:
        (size,) = _LENGTH.unpack(await self._reader.readexactly(_LENGTH.size))
        if not TAG < size <= RECORD + TAG:
            raise asyncio.IncompleteReadError(b"", size)
        sealed, self._records = await self._reader.readexactly(size), self._records + 1
        try:
            return self._cipher.decrypt(_nonce(self._records), sealed, None)
        except InvalidTag:
            raise asyncio.IncompleteReadError(b"", size) from None


class SealedWriter:
    """What hivemind, and what paces it, ask of a stream's writer."""

    def __init__(self, writer: asyncio.StreamWriter, key: bytes) -> None:
        self._writer, self._cipher, self._records = writer, AESGCM(key), 0

    def write(self, data: bytes | memoryview) -> None:
        self.writelines([data])

    def writelines(self, pieces: Iterable[bytes | memoryview]) -> None:
        sealed = list[bytes]()
        for piece in pieces:
            data = memoryview(piece)
            for begin in range(0, len(data), RECORD):
                self._records += 1
                record = self._cipher.encrypt(_nonce(self._records), data[begin : begin + RECORD], None)
                sealed += _LENGTH.pack(len(record)), record
        self._writer.writelines(sealed)

    async def drain(self) -> None:
        await self._writer.drain()

    def close(self) -> None:
        self._writer.close()


def _nonce(record: int) -> bytes:
    return record.to_bytes(12, "big")
