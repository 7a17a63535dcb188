"""Carries connections to peers of the run that cannot be dialled: libp2p's circuit relay, the relay's side.

    a peer that cannot be dialled --reserve--> Circuits <-- hop: CONNECT it -- a peer that wants to reach it
                       ^------------- stop: CONNECT the other one ------ '
    then bytes go both ways, encrypted by the two ends: the relay reads none of them

p2pd's own relay stays off: it serves every stranger, and ends a connection after 128 KiB. Invariants: only
peers with a reservation can be reached, and a peer has one while it is connected here directly; forwarded
traffic keeps to the limits of this peer's line. Not handled: which peers ask for a reservation, and where it
is announced
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

import base58

from swarm.limits import ID_LIMIT
from swarm.net.messaging.streams import Stream, StreamDaemon, read_message, varint
from swarm.net.ports import NetError, Refused
from swarm.net.rate import RateLimits
from swarm.types import PeerId

log = logging.getLogger(__name__)

HOP, STOP = "/libp2p/circuit/relay/0.2.0/hop", "/libp2p/circuit/relay/0.2.0/stop"
"""Names of libp2p's protocols: specs/relay/circuit-v2.md in github.com/libp2p/specs."""

OK, TOO_MANY, FAILED, NO_RESERVATION, MALFORMED = 100, 201, 203, 204, 400
"""Statuses of that specification."""

RESERVED_SECONDS = 300.0
"""Seconds of a reservation; its peer renews it at half of that."""

RESERVATIONS, CIRCUITS, CIRCUITS_OF_ONE = 128, 128, 16
"""Peers that may have a reservation, connections carried at a time, and those of one peer at either end."""

HANDSHAKE_SECONDS = 10.0
"""Seconds for the few messages before the first byte is carried."""

MESSAGE_LIMIT = 4096
"""Bytes of one of these messages, by the specification."""

PIECE = 1 << 16
"""Bytes read at a time."""


class Circuits:
    """One relay. `attach` gives it each new p2pd."""

    def __init__(
        self,
        line: Callable[[], Awaitable[StreamDaemon]],
        hang_up: Callable[[asyncio.StreamWriter], None],
        limits: RateLimits,
    ) -> None:
        """`line()` waits for the p2pd of the moment."""
        self._line, self._hang_up, self._limits = line, hang_up, limits
        self._reserved: dict[PeerId, float] = {}
        """Until when, in loop seconds."""
        self._carried: dict[asyncio.Task[None], tuple[PeerId, PeerId]] = {}
        """Both ends of each connection."""
        self.passed = 0
        """Bytes that came from one end and went to the other, so far."""
        self._closing = False

    async def attach(self, daemon: StreamDaemon) -> None:
        await daemon.on_stream(HOP, self._hop)

    def reserve(self, peer: PeerId) -> float:
        """Connections to this peer are carried for so many seconds from now on. Raises Refused."""
        now = _now()
        self._reserved = {one: until for one, until in self._reserved.items() if until > now}
        if peer not in self._reserved and len(self._reserved) >= RESERVATIONS:
            raise Refused(f"this relay has {RESERVATIONS} reservations: ask another one")
        self._reserved[peer] = now + RESERVED_SECONDS
        return RESERVED_SECONDS

    async def close(self) -> None:
        self._closing = True
        for task in self._carried:
            task.cancel()
        await asyncio.gather(*self._carried, return_exceptions=True)

    async def _hop(self, source: PeerId, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        try:
            async with asyncio.timeout(HANDSHAKE_SECONDS):
                target = _connect_target(await read_message(reader, MESSAGE_LIMIT))
                far = await self._accepted(task, source, target)
            writer.write(_framed(_hop_status(far if isinstance(far, int) else OK)))
            if not isinstance(far, int):
                await self._carry((reader, writer), far)
        except (OSError, EOFError, TimeoutError, NetError) as error:
            log.debug("a circuit of %s ended: %s", source, error or type(error).__name__)
        except asyncio.CancelledError:
            # The task is asyncio.streams' own, and Python 3.11 prints a traceback when such a one ends as
            # cancelled.
            if not self._closing:
                raise
        finally:
            self._carried.pop(task, None)
            self._hang_up(writer)

    async def _accepted(
        self, task: asyncio.Task[None], source: PeerId, target: PeerId | None
    ) -> Stream | int:
        """The stream to the other end, or the status with the reason why there is none."""
        if target is None:
            return MALFORMED
        if self._reserved.get(target, 0.0) <= _now() or target == source:
            return NO_RESERVATION
        ends = [peer for both in self._carried.values() for peer in both]
        if len(self._carried) >= CIRCUITS or max(map(ends.count, (source, target))) >= CIRCUITS_OF_ONE:
            return TOO_MANY
        self._carried[task] = source, target
        try:
            return await self._connected(source, target)
        except (OSError, EOFError, NetError) as error:
            log.debug("%s cannot be connected with %s: %s", source, target, error)
            return FAILED

    async def _connected(self, source: PeerId, target: PeerId) -> Stream:
        """The stream to a peer that accepts a connection of `source`. Raises OSError, EOFError, NetError."""
        reader, writer = await (await self._line()).open_stream(target, STOP, HANDSHAKE_SECONDS)
        try:
            writer.write(_framed(_stop_connect(source)))
            if (status := _fields(await read_message(reader, MESSAGE_LIMIT)).get(4)) != OK:
                raise ConnectionError(f"it answers {status!r}")
        except BaseException:
            self._hang_up(writer)
            raise
        return reader, writer

    async def _carry(self, near: Stream, far: Stream) -> None:
        """Until either end closes."""
        both = [
            asyncio.create_task(self._pump(near[0], far[1])),
            asyncio.create_task(self._pump(far[0], near[1])),
        ]
        try:
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in both:
                task.cancel()
            await asyncio.gather(*both, return_exceptions=True)
            self._hang_up(far[1])

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        up, down = self._limits
        while piece := await reader.read(min(PIECE, up.piece)):
            down.count(len(piece))
            await up.wait(len(piece))
            writer.write(piece)
            self.passed += len(piece)
            await writer.drain()


# --- messages: protobuf of four fields, of which a relay reads two ------------------------------------------


def _fields(message: bytes) -> dict[int, int | bytes]:
    """Number -> value of a protobuf message's fields; those of a kind that is not used here end it."""
    found: dict[int, int | bytes] = {}
    at = 0
    while at < len(message):
        key, at = _varint(message, at)
        value, at = _varint(message, at)
        if key & 7 == 2:
            found[key >> 3], at = message[at : at + value], at + value
        elif key & 7 == 0:
            found[key >> 3] = value
        else:
            break
    return found


def _varint(message: bytes, at: int) -> tuple[int, int]:
    number = shift = 0
    for byte in message[at : at + 10]:
        number |= (byte & 0x7F) << shift
        shift, at = shift + 7, at + 1
        if byte < 0x80:
            break
    return number, at


def _connect_target(message: bytes) -> PeerId | None:
    """The target of a HopMessage{type 1 = CONNECT 1, peer 2{id 1}}; None for any other message."""
    fields = _fields(message)
    peer = fields.get(2)
    target = _fields(peer).get(1) if fields.get(1) == 1 and isinstance(peer, bytes) else None
    if not isinstance(target, bytes) or len(target) > ID_LIMIT:
        return None
    return PeerId(base58.b58encode(target).decode())


def _hop_status(status: int) -> bytes:
    """HopMessage{type 1 = STATUS 2, status 5}, without a limit: the connection is as good as a direct one."""
    return b"\x08\x02\x28" + varint(status)


def _stop_connect(source: PeerId) -> bytes:
    """StopMessage{type 1 = CONNECT 0, peer 2{id 1}}."""
    raw = base58.b58decode(source)
    peer = b"\x0a" + varint(len(raw)) + raw
    return b"\x08\x00\x12" + varint(len(peer)) + peer


def _framed(message: bytes) -> bytes:
    return varint(len(message)) + message


def _now() -> float:
    return asyncio.get_running_loop().time()
