"""Mail over libp2p streams: one request and one reply at a time on a stream, a pool of streams per service.

    request  4 bytes length, message
    reply    1 byte status (ok, refused, busy), 4 bytes length, acknowledgement or reason

A libp2p stream that breaks looks to its reader as if it had ended: only a complete reply counts as an answer,
anything less is Unreachable. A frame's size is checked before it is read. A length and its message leave in
one write: two would be two packets, and p2pd would wake twice at both ends. An idle stream that turns out
dead is replaced once, so that a message may arrive twice: receivers know repeated messages by their ids
(ports.Mail says so). swarm.core.stream_slots decides which stream is closed when there are too many, and
which message is refused as Busy. Answers that carry blocks, and requests for them, keep to the limits of the
peer's line (swarm.net.rate), all else is counted there. Not handled: permissions to send.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import struct
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial

from swarm.core.stream_slots import StreamSeat, StreamSlots, deadline, largest
from swarm.limits import FRAME_LIMIT, REASON_LIMIT, cut
from swarm.net.messaging.streams import Stream, StreamDaemon
from swarm.net.ports import NOTHING_CAME, Busy, Gate, Handler, Refused, Silent, Turns, Unreachable
from swarm.net.rate import UNLIMITED, RateLimit, RateLimits
from swarm.net.turns import no_turn
from swarm.protocol import Service
from swarm.types import Digest, PeerId

log = logging.getLogger(__name__)


POOL_SECONDS = 30.0
"""Seconds after which the sender closes an idle stream: a sampler writes more often, and a peer that asked
once should not hold one."""

STREAMS_TO_ONE = 8
"""Streams open at once to one service of one peer; more do not make a link faster, and p2pd fails at 256 to
one peer."""

IDLE_SECONDS = 60.0
"""Seconds after which the receiver closes it: later than the sender, so that a request never meets a stream
that is just being closed."""

REPLY_SECONDS = 30.0
"""Seconds for a peer to read each piece of a reply; one that takes longer counts as gone."""

DIAL_SHARE, DIAL_SECONDS = 0.4, 8.0
"""Share of a message's deadline, and seconds at most: finding the peer and opening the stream take one share
each, the answer has the rest."""

PIECE = 1 << 16
"""Bytes read at a time of a refused message, and written at a time of a reply: smaller pieces cost more in
calls."""

BULK = frozenset({Service.BLOBS, Service.PATCHES, Service.STATES, Service.CONTRIBUTIONS})
"""Services whose answers are blocks: these wait where the line is limited."""

OK, REFUSED, BUSY = 0, 1, 2
_REPLY = struct.Struct(">BI")
_SIZE = struct.Struct(">I")

BROKEN = (OSError, EOFError)
CROWDED = b"busy: too many calls at once, try later"


@dataclass
class Pool:
    """Streams to one service of one peer."""

    slots: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(STREAMS_TO_ONE))
    idle: list[tuple[float, Stream]] = field(default_factory=list)
    """(since, stream), the most recently used last."""
    users: int = 0
    patient: dict[asyncio.Timeout, float] = field(default_factory=dict)
    """Calls whose deadline moves with progress -> seconds without a byte after which the peer is silent."""

    def moved(self) -> None:
        """Bytes of an answer arrived: extend the calls that wait for this service of this peer."""
        if not self.patient:
            return
        now = asyncio.get_running_loop().time()
        for limit, idle in self.patient.items():
            if not limit.expired():
                limit.reschedule(now + idle)


class StepDeadline:
    """The deadline of the current step of one stream; times are of the running loop.

    It changes four times a message, and a new timer for each would cost more than handling the message. So
    the one timer stays set while the deadline moves later; when it fires early, it is set again.
    """

    def __init__(self, over: Callable[[], None]) -> None:
        """`over` is called when a step outlasts its deadline."""
        self._loop, self._over = asyncio.get_running_loop(), over
        self._until = math.inf
        self._timer: asyncio.TimerHandle | None = None

    def begin(self, seconds: float) -> None:
        """Begin a step that may take `seconds`; infinite: no deadline."""
        self._until = self._loop.time() + seconds
        if self._timer is None or self._until < self._timer.when():
            self._set()

    def end(self) -> None:
        """Cancel the deadline: the stream has ended."""
        self._until = math.inf
        self._set()

    def _set(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_at(self._until, self._look) if self._until < math.inf else None

    def _look(self) -> None:
        if self._until <= self._loop.time():
            self._over()
        else:
            self._set()


class StreamMail:
    """The Mail port. `line()` waits for the current p2pd, `find(peer)` makes p2pd dial a peer by remembered
    addresses."""

    def __init__(
        self,
        run: Digest,
        line: Callable[[], Awaitable[StreamDaemon]],
        find: Callable[[PeerId, float], Awaitable[None]],
        hang_up: Callable[[asyncio.StreamWriter], None],
        bug: Callable[[str, str], None],
        limits: RateLimits = UNLIMITED,
    ) -> None:
        """`bug(service, traceback)` is called when a handler raises anything but Refused."""
        self._prefix = run[:16]
        self._limits = limits
        self._usual = 1
        """Bytes of the last block that came. A request for another waits until the line has carried as many:
        a block on its way cannot be held back, since the buffers between two peers hold one."""
        self._line, self._find, self._hang_up, self._bug = line, find, hang_up, bug
        self._services: dict[str, tuple[Handler, Turns | None]] = {}
        self._pools: dict[tuple[PeerId, str], Pool] = {}
        self._closing = False
        self._serving: set[asyncio.Task[None]] = set()
        self._open_for: dict[StreamSeat, asyncio.StreamWriter] = {}
        self._slots = StreamSlots()
        self._gate: Gate = lambda peer, service: None

    # --- sending --------------------------------------------------------------------------------------------

    async def send(
        self, to: PeerId, service: str, data: bytes, timeout: float = 15.0, idle: float | None = None
    ) -> bytes:
        if len(data) > FRAME_LIMIT:
            raise ValueError(
                f"a message of {len(data)} bytes does not fit into {FRAME_LIMIT}: cut it (swarm.net.blobs"
                " does)"
            )
        key = (to, service)
        pool = self._pools.setdefault(key, Pool())
        pool.users += 1
        try:
            async with asyncio.timeout(timeout), pool.slots:
                return await self._exchange(pool, to, service, data, timeout, idle)
        except TimeoutError as error:
            raise Silent(f"{to} did not answer `{service}` within {timeout:g} s") from error
        finally:
            pool.users -= 1
            if not pool.users and not pool.idle:
                self._pools.pop(key, None)

    async def _exchange(
        self, pool: Pool, to: PeerId, service: str, data: bytes, timeout: float, idle: float | None
    ) -> bytes:
        while pool.idle:
            _, stream = pool.idle.pop()
            if stream[0].at_eof() or stream[1].is_closing():
                self._hang_up(stream[1])
                continue
            try:
                return await self._ask(pool, stream, to, service, data, idle)
            except Unreachable:
                break  # it had died while idle
        return await self._ask(pool, await self._open(to, service, timeout), to, service, data, idle)

    async def _open(self, to: PeerId, service: str, timeout: float) -> Stream:
        patience = min(timeout * DIAL_SHARE, DIAL_SECONDS)
        try:
            await self._find(to, patience)
            line = await self._line()
            return await line.open_stream(to, self._name(service), patience)
        except (Unreachable, Silent) as error:
            raise Unreachable(f"{to} cannot be reached for `{service}`: {error}") from error

    async def _ask(
        self, pool: Pool, stream: Stream, to: PeerId, service: str, data: bytes, idle: float | None
    ) -> bytes:
        reader, writer = stream
        limits, due, silent = self._limits, 0, asyncio.timeout(None)
        unused = True
        try:
            async with silent:
                if service in BULK:
                    await limits.down.wait(usual := self._usual)
                    due = usual
                if idle is not None:
                    pool.patient[silent] = idle
                    silent.reschedule(asyncio.get_running_loop().time() + idle)
                unused = False
                limits.up.count(_SIZE.size + len(data))
                writer.write(_SIZE.pack(len(data)) + data)
                await writer.drain()
                status, size = _REPLY.unpack(await reader.readexactly(_REPLY.size))
                if size > FRAME_LIMIT or status not in (OK, REFUSED, BUSY):
                    raise ConnectionError(f"a reply of {size} bytes with status {status}")
                if due and status == OK:
                    self._usual = max(size, 1)
                wanted = size if status == OK else min(size, REASON_LIMIT)
                limits.down.count(wanted - due)
                due = 0
                answer = await _receive(pool, reader, wanted)
                unused = wanted == size  # the rest of a reason that is too long is not read
        except BROKEN as error:
            if silent.expired():
                raise Silent(f"{to} {NOTHING_CAME} {idle:g} s") from error
            raise Unreachable(
                f"the stream to {to} broke before the answer ({error or type(error).__name__})"
            ) from error
        finally:
            limits.down.count(-due)
            pool.patient.pop(silent, None)
            if unused:
                pool.idle.append((asyncio.get_running_loop().time(), stream))
            else:
                self._break_off(writer)
        if status != OK:
            raise (Busy if status == BUSY else Refused)(cut(answer.decode(errors="replace"), REASON_LIMIT))
        return answer

    # --- serving --------------------------------------------------------------------------------------------

    async def serve(self, service: str, handler: Handler, turns: Turns | None = None) -> None:
        line = await self._line()
        self._services[service] = handler, turns
        with contextlib.suppress(Unreachable):  # that p2pd is gone: the next one has all services
            await self._register(line, service)

    def prefer(self, regular: Callable[[PeerId], bool]) -> None:
        """Serve peers for which `regular` is true before strangers."""
        self._slots.regular = regular

    def guard(self, gate: Gate) -> None:
        self._gate = gate

    async def attach(self, line: StreamDaemon) -> None:
        """Register all services with a new p2pd."""
        for service in [*self._services]:
            await self._register(line, service)

    async def _register(self, line: StreamDaemon, service: str) -> None:
        async def accept(peer: PeerId, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await self._accept(service, peer, reader, writer)

        await line.on_stream(self._name(service), accept)

    def _name(self, service: str) -> str:
        return f"{self._prefix}/{service}"

    async def _accept(
        self, service: str, peer: PeerId, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        task = asyncio.current_task()
        assert task is not None
        seat, gone = self._slots.arrive(peer, service, _now())
        if gone is not None:
            self._give_way(gone)
        if seat is None:
            self._hang_up(writer)
            return
        self._serving.add(task)
        self._open_for[seat] = writer
        step = StepDeadline(partial(self._late, seat))
        try:
            while await self._answer(seat, reader, writer, step):
                pass
        except asyncio.CancelledError:
            # The task is asyncio.streams' own, and Python 3.11 prints a traceback when such a one ends as
            # cancelled.
            if not self._closing:
                raise
        except BROKEN as error:
            log.debug("a stream of %s from %s ended: %s", service, peer, error or type(error).__name__)
        finally:
            step.end()
            self._serving.discard(task)
            self._slots.leave(seat)
            if self._open_for.pop(seat, None) is not None:
                self._hang_up(writer)

    def _late(self, seat: StreamSeat) -> None:
        if seat in self._open_for:  # else it gave way in the same moment
            self._give_way(seat)

    def _give_way(self, *seats: StreamSeat) -> None:
        """Close these streams; the tasks that serve them end with a broken stream."""
        for seat in seats:
            self._break_off(self._open_for.pop(seat))

    def _break_off(self, writer: asyncio.StreamWriter) -> None:
        writer.transport.abort()  # with all bytes that its reader did not take
        self._hang_up(writer)

    async def _answer(
        self, seat: StreamSeat, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, step: StepDeadline
    ) -> bool:
        """Answer one request. False when the stream must be closed."""
        step.begin(IDLE_SECONDS)
        (size,) = _SIZE.unpack(await reader.readexactly(_SIZE.size))
        why = self._gate(seat.peer, seat.service)
        if size > (most := largest(seat.service)):
            why = why or f"a message of {size} bytes, limit {most}"
        if why is not None:
            await _reply(writer, REFUSED, why.encode()[:REASON_LIMIT], step, self._limits.up, bulk=False)
            return False
        status, answer, end = BUSY, CROWDED, no_turn
        gone = self._slots.announce(seat, size, _now())
        step.begin(deadline(size))
        self._limits.down.count(_SIZE.size + size)
        if gone is None:
            await _discard(reader, size)
        else:
            self._give_way(*gone)
            message = await reader.readexactly(size)
        step.begin(math.inf)
        if gone is not None and self._slots.begin(seat, _now()):
            status, answer, end = await self._handle(seat.service, seat.peer, message)
        self._slots.answer(seat, _now())
        try:
            bulk = status == OK and seat.service in BULK
            await _reply(writer, status, answer, step, self._limits.up, bulk)
        finally:
            end()
        self._slots.rest(seat, _now())
        return True

    async def _handle(
        self, service: str, peer: PeerId, message: bytes
    ) -> tuple[int, bytes, Callable[[], None]]:
        """Returns status, answer or reason, and the function that ends the call's turn once the reply has
        left."""
        handler, turns = self._services[service]
        end = no_turn
        try:
            end = await turns.take(peer) if turns is not None else no_turn
            answer = await handler(peer, message)
            if len(answer) > FRAME_LIMIT:
                raise ValueError(f"{service!r} answers with {len(answer)} bytes, limit {FRAME_LIMIT}")
            return OK, answer, end
        except Refused as refusal:
            return BUSY if isinstance(refusal, Busy) else REFUSED, str(refusal).encode()[:REASON_LIMIT], end
        except Exception as error:
            # A bug of ours that the sender may trigger again: it is reported and logged, and the peer goes
            # on.
            log.exception("the handler of %r failed on a message of %s", service, peer)
            self._bug(service, f"{type(error).__name__}: {error}")
            return REFUSED, b"internal error", end

    # --- housekeeping ---------------------------------------------------------------------------------------

    def tidy(self) -> None:
        """Close streams that were idle too long; called every few seconds."""
        old = asyncio.get_running_loop().time() - POOL_SECONDS
        for key, pool in list(self._pools.items()):
            for since, stream in pool.idle:
                if since < old or stream[0].at_eof():
                    self._hang_up(stream[1])
            pool.idle = [
                (since, stream) for since, stream in pool.idle if since >= old and not stream[0].at_eof()
            ]
            if not pool.users and not pool.idle:
                del self._pools[key]

    async def close(self) -> None:
        self._closing = True
        for pool in self._pools.values():
            for _, stream in pool.idle:
                self._hang_up(stream[1])
        self._pools.clear()
        serving = [task for task in self._serving if task is not asyncio.current_task()]
        for task in serving:
            task.cancel()
        await asyncio.gather(*serving, return_exceptions=True)

    def statistics(self) -> dict[str, int]:
        return {
            "streams_out": sum(len(pool.idle) + pool.users for pool in self._pools.values()),
            **self._slots.statistics(),
        }


async def _receive(pool: Pool, reader: asyncio.StreamReader, size: int) -> bytes:
    pieces, missing = list[bytes](), size
    pool.moved()
    while missing:
        piece = await reader.read(missing)
        if not piece:
            raise EOFError(f"ended after {size - missing} of {size} bytes")
        pieces.append(piece)
        missing -= len(piece)
        pool.moved()
    return b"".join(pieces)


async def _reply(
    writer: asyncio.StreamWriter, status: int, answer: bytes, step: StepDeadline, limit: RateLimit, bulk: bool
) -> None:
    rest, piece = memoryview(answer), min(PIECE, limit.piece)
    data: bytes | memoryview = _REPLY.pack(status, len(answer)) + rest[:piece]
    while True:
        if bulk:
            await limit.wait(len(data))
        else:
            limit.count(len(data))
        step.begin(REPLY_SECONDS)
        writer.write(data)
        await writer.drain()
        step.begin(math.inf)
        if not (rest := rest[piece:]):
            return
        data = rest[:piece]


async def _discard(reader: asyncio.StreamReader, size: int) -> None:
    while size:
        part = await reader.read(min(size, PIECE))
        if not part:
            raise ConnectionError("ended in the middle of a message")
        size -= len(part)


def _now() -> float:
    return asyncio.get_running_loop().time()
