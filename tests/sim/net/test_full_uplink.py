"""A group that leaves while blocks fill the uplink, in virtual time: real mail over streams that share one
line, first in, first out, as a home router queues."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from mail_lines import RUN, hang_up, no_dial

from swarm.net.messaging.mail import StreamMail
from swarm.net.rate import RateLimits
from swarm.settings.config import Limits
from swarm.sim.clock import run
from swarm.types import PeerId

MBIT = 20.0
LATENCY = 0.02
BUFFER = 64 << 10
"""Bytes that a stream's buffers take before its writer waits."""

GROUP, GROUPS, PAUSE = bytes(20_000), 200, 0.25
HOME, LAB = PeerId("home"), PeerId("lab")


class Uplink:
    """What one peer sends, one byte after the other."""

    def __init__(self) -> None:
        self.free = 0.0

    def carried(self, size: int) -> float:
        """When these bytes have left."""
        self.free = max(self.free, asyncio.get_running_loop().time()) + size * 8 / (MBIT * 1e6)
        return self.free


class End(asyncio.Transport):
    """One end of a stream: what is written arrives at the other end's reader."""

    def __init__(self, uplink: Uplink | None) -> None:
        super().__init__()
        self._loop, self._uplink = asyncio.get_running_loop(), uplink
        self.reader = asyncio.StreamReader()
        self.protocol = asyncio.StreamReaderProtocol(self.reader)
        self.far: End | None = None
        self._queued, self._closing = 0, False

    def write(self, data: Any) -> None:
        size, sent = len(data), bytes(data)
        self._queued += size
        if self._queued > BUFFER:
            self.protocol.pause_writing()
        when = self._uplink.carried(size) if self._uplink is not None else self._loop.time()
        self._loop.call_at(when, self._left, sent)

    def _left(self, data: bytes) -> None:
        self._queued -= len(data)
        if self._queued <= BUFFER and self.protocol._paused:  # type: ignore[attr-defined]
            self.protocol.resume_writing()
        assert self.far is not None
        self._loop.call_later(LATENCY, self.far.reader.feed_data, data)

    def close(self) -> None:
        self._closing = True
        if self.far is not None:
            self._loop.call_later(LATENCY, self.far.reader.feed_eof)
            self.far = None

    abort = close

    def is_closing(self) -> bool:
        return self._closing

    def get_write_buffer_size(self) -> int:
        return self._queued

    def streams(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        self.protocol.connection_made(self)
        return self.reader, asyncio.StreamWriter(self, self.protocol, self.reader, self._loop)


class Wires:
    """The p2pd of `home`, whose uplink is slow, or of `lab`."""

    def __init__(self, me: PeerId, uplinks: dict[PeerId, Uplink]) -> None:
        self.me, self._uplinks = me, uplinks
        self.other: Wires | None = None
        self.handlers: dict[str, Callable[..., Awaitable[None]]] = {}
        self.tasks: set[asyncio.Future[None]] = set()

    async def on_stream(self, name: str, handler: Callable[..., Awaitable[None]]) -> None:
        self.handlers[name] = handler

    async def open_stream(self, peer: PeerId, name: str, timeout: float) -> Any:
        assert self.other is not None
        near, far = End(self._uplinks.get(self.me)), End(self._uplinks.get(peer))
        near.far, far.far = far, near
        self.tasks.add(asyncio.ensure_future(self.other.handlers[name](self.me, *far.streams())))
        return near.streams()


def mail(wires: Wires, limits: Limits) -> StreamMail:
    async def here() -> Wires:
        return wires

    def no_bug(service: str, what: str) -> None:
        raise AssertionError(what)

    return StreamMail(RUN, here, no_dial, hang_up, no_bug, RateLimits.of(limits))


async def block(sender: PeerId, message: bytes) -> bytes:
    return bytes(1 << 20)


async def receipt(sender: PeerId, message: bytes) -> bytes:
    return b"admit"


def worst(blocks: bool, limits: Limits) -> tuple[float, int]:
    """Seconds of a group that one in a hundred exceeds, and the blocks that left meanwhile."""

    async def main() -> tuple[float, int]:
        uplinks = {HOME: Uplink()}
        home, lab = Wires(HOME, uplinks), Wires(LAB, uplinks)
        home.other, lab.other = lab, home
        sampler, learner = mail(home, limits), mail(lab, Limits())
        await sampler.serve("blobs", block)
        await learner.serve("groups", receipt)
        loop, taken, got = asyncio.get_running_loop(), list[float](), [0]

        async def fetch() -> None:
            while True:
                await learner.send(HOME, "blobs", b"?", timeout=300.0)
                got[0] += 1

        fetching = [asyncio.ensure_future(fetch()) for _ in range(8 if blocks else 0)]
        await asyncio.sleep(5)
        for _ in range(GROUPS):
            began = loop.time()
            await sampler.send(LAB, "groups", GROUP)
            taken.append(loop.time() - began)
            await asyncio.sleep(PAUSE)
        for task in fetching:
            task.cancel()
        await asyncio.gather(*fetching, return_exceptions=True)
        await sampler.close()
        await learner.close()
        return sorted(taken)[-1 - GROUPS // 100], got[0]

    return run(main())


def test_blocks_below_a_limit_do_not_delay_a_group() -> None:
    quiet, _ = worst(False, Limits())
    limited, blocks = worst(True, Limits(upload=0.8 * MBIT))
    unlimited, _ = worst(True, Limits())
    assert limited <= 2 * quiet
    assert unlimited > 4 * quiet, "a full line delays it where nothing is limited"
    assert blocks * 8 * (1 << 20) > 0.7 * MBIT * 1e6 * GROUPS * PAUSE, "they leave all the same"
