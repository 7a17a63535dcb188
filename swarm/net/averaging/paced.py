"""hivemind's streams of a learner: which are accepted, which way parts of a round go, and at what pace.

    stream of a peer that is not invited --> closed, nothing of it is read
    part --> PacedWriter --pieces--> its ticket server, or p2pd --> ... --pieces--> PacedReader --> part

Parts go past p2pd (swarm.net.averaging.bypass) where the last round was fast, and the other one gives a
ticket and its ticket server is reached; where not, as behind a router or over a relay, through p2pd. Only
streams that carry parts are paced: messages of matching are small and must not wait. A reader that reads
slowly holds its sender back once the buffers between them are full (some hundred KiB). Not handled here: the
pace (swarm.net.rate).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from collections.abc import Callable
from typing import Any, Protocol

from hivemind.p2p import P2P, PeerID
from hivemind.p2p.p2p_daemon_bindings.utils import ControlFailure

from swarm.net.averaging.bypass import TICKET_SIZE, Handler, PartReader, Ticket, TicketServer
from swarm.net.rate import UNLIMITED, RateLimit, RateLimits

log = logging.getLogger(__name__)

PARTS = "rpc_aggregate_part"
"""How the names of streams that carry parts end."""

TICKETS = "_ticket"
"""Ends the name of the stream that gives a ticket for one of parts."""

KNOCK = 1.5
"""Seconds to get a ticket, and to reach its server: less than after which its peer misses a part."""

SHUT = 600.0
"""Seconds in which a ticket server that was not reached is not tried again."""

FAST = 16_000_000
"""Bytes a second that a member gets in a round of fast lines, and sends: parts of the next one go past p2pd,
which would take longer than the lines. On a line that is full p2pd loses nothing, and two connections to each
other member hold up one another's parts: at 20 Mbit/s for longer than a member is patient."""

Piece = bytes | bytearray | memoryview


class Reader(Protocol):
    async def readexactly(self, size: int) -> Piece:
        """Raises asyncio.IncompleteReadError."""
        ...


class PacedReader:
    """What hivemind asks of a stream's reader."""

    def __init__(self, reader: Reader, limit: RateLimit) -> None:
        self._reader, self._limit = reader, limit

    async def readexactly(self, size: int) -> Piece:
        """Raises asyncio.IncompleteReadError."""
        if self._limit.rate == math.inf:
            return await self._reader.readexactly(size)
        pieces = list[Piece]()
        for begin in range(0, size, self._limit.piece):
            pieces.append(await self._reader.readexactly(min(size - begin, self._limit.piece)))
            await self._limit.wait(len(pieces[-1]))
        return b"".join(pieces)


class PacedWriter:
    """What hivemind asks of a stream's writer: bytes leave in `drain`."""

    def __init__(self, writer: Any, limit: RateLimit) -> None:
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
    """Made by `replicate`; then `limits` may be set, and `answers`, and `ticket_server`."""

    limits: RateLimits = UNLIMITED
    answers: Callable[[PeerID], bool] = staticmethod(lambda peer: True)
    """Peers whose streams are accepted; others' are closed."""
    ticket_server: TicketServer | None = None
    """Where parts come in past p2pd."""
    carried = 0
    """Bytes a second each way in the last round; 0: there was none, or it broke."""

    def __init__(self) -> None:
        super().__init__()
        self._shut: dict[PeerID, float] = {}
        """Peer with an unreachable ticket server -> loop time until which it is not tried."""
        self.through = set[PeerID]()
        """Peers whose ticket servers were tried last, without success."""

    async def call_binary_stream_handler(self, peer_id: PeerID, handler_name: str) -> tuple[Any, Any, Any]:
        if not _carries_parts(handler_name):
            return await super().call_binary_stream_handler(peer_id, handler_name)  # type: ignore[no-any-return]
        if self.carried >= FAST:
            if (past := await self._past(peer_id, handler_name)) is not None:
                self.through.discard(peer_id)
                return None, *self._paced(*past)
            self.through.add(peer_id)
        info, reader, writer = await super().call_binary_stream_handler(peer_id, handler_name)
        return info, *self._paced(PartReader(reader, writer), writer)

    async def _past(self, peer: PeerID, name: str) -> tuple[Any, Any] | None:
        """A stream past p2pd; None where there is no way."""
        loop = asyncio.get_running_loop()
        if self._shut.get(peer, -math.inf) > loop.time():
            return None
        try:
            async with asyncio.timeout(KNOCK):
                info, reader, writer = await super().call_binary_stream_handler(peer, name + TICKETS)
                with contextlib.closing(writer):
                    ticket = Ticket.read(await reader.readexactly(TICKET_SIZE))
                self._shut[peer] = loop.time() + SHUT
                stream = await ticket.enter(_host(info.addr))
        except (ControlFailure, TimeoutError, OSError, EOFError) as error:
            log.debug("parts go to %s through p2pd: %r", peer, error)
            return None
        self._shut.pop(peer, None)
        return stream

    async def add_binary_stream_handler(self, name: str, handler: Handler, balanced: bool = False) -> None:
        if not _carries_parts(name):
            return await super().add_binary_stream_handler(name, self._answered(handler), balanced=balanced)  # type: ignore[no-any-return]

        async def paced(info: Any, reader: Any, writer: Any) -> None:
            await handler(info, *self._paced(reader, writer))

        async def through(info: Any, reader: Any, writer: Any) -> None:
            await paced(info, PartReader(reader, writer), writer)

        await super().add_binary_stream_handler(name, self._answered(through), balanced=balanced)
        if (ticket_server := self.ticket_server) is None:
            return None

        async def give(info: Any, reader: Any, writer: Any) -> None:
            with contextlib.closing(writer):
                writer.write(ticket_server.ticket(info, self._answered(paced)).packed())
                await writer.drain()

        await super().add_binary_stream_handler(name + TICKETS, self._answered(give), balanced=balanced)

    async def remove_binary_stream_handler(self, name: str) -> None:
        for one in registered(name) if self.ticket_server is not None else (name,):
            await super().remove_binary_stream_handler(one)

    def _answered(self, handler: Handler) -> Handler:
        async def answered(info: Any, reader: Any, writer: Any) -> None:
            if not self.answers(info.peer_id):
                return writer.close()  # type: ignore[no-any-return]
            await handler(info, reader, writer)

        return answered

    def _paced(self, reader: Reader, writer: Any) -> tuple[PacedReader, PacedWriter]:
        return PacedReader(reader, self.limits.down), PacedWriter(writer, self.limits.up)


def registered(name: str) -> tuple[str, ...]:
    """All streams that are taken for a handler of this name where there is a ticket server."""
    return (name, name + TICKETS) if _carries_parts(name) else (name,)


def _carries_parts(name: str) -> bool:
    return name.endswith(PARTS)


def _host(address: Any) -> str:
    """At the other end of a connection that is not over a relay. Raises OSError."""
    _, kind, host, *rest = str(address).split("/")
    if kind not in ("ip4", "ip6") or "p2p-circuit" in rest:
        raise OSError(f"no direct way: {address}")
    return host
