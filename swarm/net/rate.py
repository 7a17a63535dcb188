"""What a peer may send, or take, in a second: a token bucket for its mail and its averager's process.

    bulk (releases, states, parts of a round)  -- wait(size) --+
                                                               +--> rate bytes a second, BURST of them at once
    all else (groups, receipts, questions)     -- count(size) -+

What is counted goes at once and makes bulk wait, so that both together keep to the rate; what neither mail
nor averaging sends (gossip, the DHT, headers) is not known here. The averager is a process of its own: each of
the two writes what it has passed into memory that both map, and charges its bucket with what the other one has
passed since. Neither takes a lock, so that one which is frozen or killed costs the other nothing. Invariants:
bulk goes in the order of the calls, piece by piece, so that its streams share alike, and mail and averaging by
halves where both have something (a round has a deadline, and samplers wait for a release); either has all of the
rate where the other has nothing. Bulk is never starved: see PATIENCE.
"""

from __future__ import annotations

import asyncio
import math
import mmap
from typing import NamedTuple

from swarm.config import Limits
from swarm.protocol import FRAME_LIMIT

BURST = 0.1
"""Seconds of the rate that may go at once: an event loop that computes is late by less, and catches up."""

TICK = 0.02
"""Seconds of the rate in a piece: what is written fills no line for longer than a group notices."""

LEAST, MOST = 4 << 10, 64 << 10
"""Bytes of a piece: smaller ones cost more in calls."""

PATIENCE = 10
"""Times of a piece that bulk waits at most: where what must not wait has all of the rate, a tenth as much of bulk
goes beyond it, and whoever fetches from here does not take this peer for a silent one."""

MAIL, AVERAGER = 0, 1
"""Places in the memory that the two processes share."""


class RateLimit:
    """One direction of a peer's line. Times are loop seconds."""

    def __init__(self, rate: float = math.inf) -> None:
        """`rate` in bytes per second; infinite: nothing waits."""
        self.rate = rate
        self.piece = FRAME_LIMIT if rate == math.inf else int(min(max(rate * TICK, LEAST), MOST))
        """Bytes to wait for at a time."""
        self._passed = memoryview(mmap.mmap(-1, 16)).cast("q")
        """Bytes that each process has passed; each writes its own number alone, in one store."""
        self._begin(MAIL)

    def _begin(self, place: int) -> None:
        self._place, self._seen = place, self._passed[1 - place]
        self._room, self._at = BURST * self.rate, -math.inf
        """Bytes that may go, less than 0 while what went before has to be waited for; and when that was so."""
        self._order = asyncio.Lock()

    def in_averager(self) -> RateLimit:
        """The same limit for the averager's process, which is forked next and is the only one."""
        other = RateLimit(self.rate)
        other._passed = self._passed
        other._begin(AVERAGER)
        return other

    def count(self, size: int) -> None:
        """`size` bytes go now: they are not held back, and bulk waits for them."""
        if self.rate < math.inf:
            self._refill()
            self._pass(size)

    async def wait(self, size: int) -> None:
        """Return when `size` bytes, a piece at most, may go. Who is cancelled has sent nothing."""
        if self.rate == math.inf:
            return
        async with self._order:
            self._refill()
            short = min(-self._room, PATIENCE * self.piece)
            if short > 0:
                await asyncio.sleep(short / self.rate)
            self._pass(size)

    def _refill(self) -> None:
        now, seen = asyncio.get_running_loop().time(), self._passed[1 - self._place]
        grown = self.rate * (now - self._at) - (seen - self._seen)
        self._room = min(BURST * self.rate, self._room + grown)
        self._at, self._seen = now, seen

    def _pass(self, size: int) -> None:
        self._room -= size
        self._passed[self._place] += size


class RateLimits(NamedTuple):
    """Both directions."""

    up: RateLimit
    down: RateLimit

    @classmethod
    def of(cls, limits: Limits) -> RateLimits:
        return cls(*(RateLimit(mbit * 1e6 / 8 or math.inf) for mbit in (limits.upload, limits.download)))

    def in_averager(self) -> RateLimits:
        return RateLimits(self.up.in_averager(), self.down.in_averager())


UNLIMITED = RateLimits(RateLimit(), RateLimit())
