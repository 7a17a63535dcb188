"""Mail over streams: one request and one reply at a time on a stream, a small pool of streams per peer and service.

    request  4 bytes length, message                reply  1 byte status, 4 bytes length, acknowledgement or reason

A libp2p stream that breaks looks to its reader as if it had ended: only the whole reply counts as an answer, everything less is
Unreachable. A frame's size is checked before it is read. An idle stream that turns out dead is replaced once, silently, so that
a message may arrive twice: receivers know repeated messages by their ids (ports.Mail says so). Not handled: who may send what.
"""

from __future__ import annotations

import asyncio
import logging
import struct
from collections import Counter, OrderedDict
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from typing import Protocol

from swarm.net.ports import Handler, Refused, Silent, Unreachable
from swarm.types import Digest, PeerId
from swarm.wire import FRAME_LIMIT

log = logging.getLogger(__name__)

STREAMS_TO_ONE = 8
# Open at once to one service of one peer; more do not make a link faster, and p2pd fails at 256 to one peer.
POOL_SECONDS = 30.0
# An idle stream is closed by the sender: a sampler writes more often, a passer-by should not hold one.
IDLE_SECONDS = 60.0
# By the receiver: later than the sender, so that a request never meets a stream that is just being closed.
BODY_SECONDS = 30.0
# From a frame's header to its last byte: 4 MiB at 140 kB/s.
DIAL_SHARE, DIAL_SECONDS = 0.4, 8.0
# Of a message's deadline, and at most: finding the peer and opening the stream take one share each, the answer has the rest.
STREAMS_FROM_ONE, STREAMS_FROM_ALL = 32, 256
# Served at once: a learner with a hundred samplers and room for as many strangers; each costs a file and a small buffer.
CALLS_FROM_ONE, CALLS = 16, 64
# Handlers that run at once; each holds up to two frames, so that mail stays below half a GiB.
REASON_LIMIT = 500
# Bytes of a refusal's reason.
DISCARD = 1 << 16
# Bytes read at a time of a message that is not wanted.
ADDRESSES_KNOWN, ADDRESSES_OF_ONE = 1024, 4
# Peers whose addresses are remembered, and how many of each.

OK, REFUSED = 0, 1
_REPLY = struct.Struct(">BI")
_SIZE = struct.Struct(">I")

Stream = tuple[asyncio.StreamReader, asyncio.StreamWriter]
BROKEN = (OSError, EOFError)


class Line(Protocol):
    """What mail needs of p2pd (swarm.net.p2pd.Daemon)."""

    async def open_stream(self, peer: PeerId, name: str, timeout: float) -> Stream: ...

    async def on_stream(
        self, name: str, handler: Callable[[PeerId, asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
    ) -> None: ...


@dataclass
class Pool:
    """Streams to one service of one peer."""

    slots: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(STREAMS_TO_ONE))
    idle: list[tuple[float, Stream]] = field(default_factory=list)
    """(since, stream), the most recently used last."""
    users: int = 0


class StreamMail:
    """The Mail port. `line()` waits for the p2pd of the moment, `find(peer)` makes p2pd dial a peer by remembered addresses."""

    def __init__(
        self,
        run: Digest,
        line: Callable[[], Awaitable[Line]],
        find: Callable[[PeerId, float], Awaitable[None]],
        hang_up: Callable[[asyncio.StreamWriter], None],
        bug: Callable[[str, str], None],
    ) -> None:
        """`bug(service, traceback)` hears of a handler that raised anything but Refused."""
        self._prefix = run[:16]
        self._line, self._find, self._hang_up, self._bug = line, find, hang_up, bug
        self._addresses: OrderedDict[PeerId, tuple[str, ...]] = OrderedDict()
        self._services: dict[str, Handler] = {}
        self._pools: dict[tuple[PeerId, str], Pool] = {}
        self._closing = False
        self._serving: set[asyncio.Task[None]] = set()
        self._streams: Counter[PeerId] = Counter()
        self._calls: Counter[PeerId] = Counter()

    # --- addresses ------------------------------------------------------------------------------------------------------

    def remember(self, peer: PeerId, addresses: Iterable[str]) -> None:
        """Where a peer says that it can be dialled (a heartbeat carries it)."""
        self._addresses[peer] = tuple(addresses)[:ADDRESSES_OF_ONE]
        self._addresses.move_to_end(peer)
        while len(self._addresses) > ADDRESSES_KNOWN:
            self._addresses.popitem(last=False)

    def addresses(self) -> dict[PeerId, tuple[str, ...]]:
        """Remembered ones, the most recently heard peer last."""
        return dict(self._addresses)

    # --- sending --------------------------------------------------------------------------------------------------------

    async def send(self, to: PeerId, service: str, data: bytes, timeout: float = 15.0) -> bytes:
        if len(data) > FRAME_LIMIT:
            raise ValueError(f"a message of {len(data)} bytes does not fit into {FRAME_LIMIT}: cut it (swarm.net.blobs does)")
        key = (to, service)
        pool = self._pools.setdefault(key, Pool())
        pool.users += 1
        try:
            async with asyncio.timeout(timeout), pool.slots:
                return await self._exchange(pool, to, service, data, timeout)
        except TimeoutError as error:
            raise Silent(f"{to} did not answer {service!r} within {timeout:g} s") from error
        finally:
            pool.users -= 1
            if not pool.users and not pool.idle:
                self._pools.pop(key, None)

    async def _exchange(self, pool: Pool, to: PeerId, service: str, data: bytes, timeout: float) -> bytes:
        while pool.idle:
            _, stream = pool.idle.pop()
            if stream[0].at_eof() or stream[1].is_closing():
                self._hang_up(stream[1])
                continue
            try:
                return await self._ask(pool, stream, to, data)
            except Unreachable:
                break  # it had died while idle
        return await self._ask(pool, await self._open(to, service, timeout), to, data)

    async def _open(self, to: PeerId, service: str, timeout: float) -> Stream:
        patience = min(timeout * DIAL_SHARE, DIAL_SECONDS)
        try:
            await self._find(to, patience)
            line = await self._line()
            return await line.open_stream(to, self._name(service), patience)
        except (Unreachable, Silent) as error:
            raise Unreachable(f"{to} cannot be reached for {service!r}: {error}") from error

    async def _ask(self, pool: Pool, stream: Stream, to: PeerId, data: bytes) -> bytes:
        reader, writer = stream
        whole = False
        try:
            writer.write(_SIZE.pack(len(data)))
            writer.write(data)
            await writer.drain()
            status, size = _REPLY.unpack(await reader.readexactly(_REPLY.size))
            if size > FRAME_LIMIT or status not in (OK, REFUSED):
                raise ConnectionError(f"a reply of {size} bytes with status {status}")
            answer = await reader.readexactly(size)
            whole = True
        except BROKEN as error:
            raise Unreachable(f"the stream to {to} broke before the answer ({error or type(error).__name__})") from error
        finally:
            if whole:
                pool.idle.append((asyncio.get_running_loop().time(), stream))
            else:
                self._hang_up(writer)
        if status == REFUSED:
            raise Refused(answer.decode(errors="replace"))
        return answer

    # --- serving --------------------------------------------------------------------------------------------------------

    async def serve(self, service: str, handler: Handler) -> None:
        self._services[service] = handler
        await self._register(await self._line(), service)

    async def attach(self, line: Line) -> None:
        """A new p2pd knows none of the services."""
        for service in self._services:
            await self._register(line, service)

    async def _register(self, line: Line, service: str) -> None:
        async def accept(peer: PeerId, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await self._accept(service, peer, reader, writer)

        await line.on_stream(self._name(service), accept)

    def _name(self, service: str) -> str:
        return f"{self._prefix}/{service}"

    async def _accept(self, service: str, peer: PeerId, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._serving.add(task)
        crowded = self._streams[peer] >= STREAMS_FROM_ONE or self._streams.total() >= STREAMS_FROM_ALL
        self._streams[peer] += 1
        try:
            while await self._answer(service, peer, reader, writer, crowded) and not crowded:
                pass
        except asyncio.CancelledError:
            # The task is asyncio.streams' own, and Python 3.11 prints a traceback when such a one ends as cancelled.
            if not self._closing:
                raise
        except (*BROKEN, TimeoutError) as error:
            log.debug("a stream of %s from %s ended: %s", service, peer, error or type(error).__name__)
        finally:
            self._serving.discard(task)
            _less(self._streams, peer)
            self._hang_up(writer)

    async def _answer(
        self, service: str, peer: PeerId, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, crowded: bool
    ) -> bool:
        """One request. False when the stream must be closed."""
        async with asyncio.timeout(IDLE_SECONDS):
            header = await reader.readexactly(_SIZE.size)
        (size,) = _SIZE.unpack(header)
        if size > FRAME_LIMIT:
            await _reply(writer, REFUSED, f"a message of {size} bytes, limit {FRAME_LIMIT}".encode())
            return False
        if crowded or self._calls[peer] >= CALLS_FROM_ONE or self._calls.total() >= CALLS:
            async with asyncio.timeout(BODY_SECONDS):
                await _discard(reader, size)
            await _reply(writer, REFUSED, b"busy: too many calls at once, try later")
            return True
        self._calls[peer] += 1
        try:
            async with asyncio.timeout(BODY_SECONDS):
                message = await reader.readexactly(size)
            status, answer = await self._handle(service, peer, message)
        finally:
            _less(self._calls, peer)
        await _reply(writer, status, answer)
        return True

    async def _handle(self, service: str, peer: PeerId, message: bytes) -> tuple[int, bytes]:
        try:
            answer = await self._services[service](peer, message)
            if len(answer) > FRAME_LIMIT:
                raise ValueError(f"{service!r} answers with {len(answer)} bytes, limit {FRAME_LIMIT}")
            return OK, answer
        except Refused as refusal:
            return REFUSED, str(refusal).encode()[:REASON_LIMIT]
        except Exception as error:
            # Ours, and whoever wrote may repeat it: it is told and logged, and the peer goes on.
            log.exception("the handler of %r failed on a message of %s", service, peer)
            self._bug(service, f"{type(error).__name__}: {error}")
            return REFUSED, b"internal error"

    # --- housekeeping ---------------------------------------------------------------------------------------------------

    def tidy(self) -> None:
        """Close streams that were idle too long; called every few seconds."""
        old = asyncio.get_running_loop().time() - POOL_SECONDS
        for key, pool in list(self._pools.items()):
            for since, stream in pool.idle:
                if since < old or stream[0].at_eof():
                    self._hang_up(stream[1])
            pool.idle = [(since, stream) for since, stream in pool.idle if since >= old and not stream[0].at_eof()]
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
            "streams_in": self._streams.total(),
            "calls_in": self._calls.total(),
        }


async def _reply(writer: asyncio.StreamWriter, status: int, answer: bytes) -> None:
    writer.write(_REPLY.pack(status, len(answer)))
    writer.write(answer)
    async with asyncio.timeout(BODY_SECONDS):
        await writer.drain()


async def _discard(reader: asyncio.StreamReader, size: int) -> None:
    while size:
        part = await reader.read(min(size, DISCARD))
        if not part:
            raise ConnectionError("ended in the middle of a message")
        size -= len(part)


def _less(counter: Counter[PeerId], peer: PeerId) -> None:
    counter[peer] -= 1
    if counter[peer] <= 0:
        del counter[peer]

