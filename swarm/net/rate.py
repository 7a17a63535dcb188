"""A peer's rate limit for sending, or receiving: a token bucket for its mail and its averager's process.

    bulk (releases, states, parts of a round)  -- wait(size) --+
                                                               +--> rate bytes a second, BURST of them at once
    all else (groups, receipts, questions)     -- count(size) -+

Counted bytes go at once and make bulk wait, so that both together keep to the rate; traffic of neither mail
nor averaging (gossip, the DHT, headers) is not known here. The averager is a process of its own: both read
and write one number, until when the line is taken, in memory that both map. Neither takes a lock, so that a
frozen or killed process costs the other nothing; where both write in the same microsecond, a piece is not
counted. Invariants: bulk goes in the order of the calls, piece by piece, so that its streams share alike, and
mail and averaging by halves where both have something (a round has a deadline, and samplers wait for a
release); either has all of the rate where the other has nothing. Bulk is never starved: see PATIENCE.
"""

from __future__ import annotations

import asyncio
import math
import mmap
from typing import NamedTuple

from swarm.limits import FRAME_LIMIT
from swarm.settings.peer_limits import Limits

BURST = 0.1
"""Seconds of the rate that may go at once: an event loop that computes is late by less, and catches up."""

TICK = 0.02
"""Seconds of the rate in a piece: one piece fills no line for longer than a group notices."""

LEAST, MOST = 4 << 10, 64 << 10
"""Bytes of a piece: smaller ones cost more in calls."""

PATIENCE = 10
"""Most times its own time that bulk waits: where urgent traffic has all of the rate, a tenth as much of bulk
goes beyond it, and peers that fetch from here do not take this one for a silent one."""


class RateLimit:
    """One direction of a peer's line. Times are loop seconds, of one clock in all loops of a machine."""

    def __init__(self, rate: float = math.inf) -> None:
        """`rate` in bytes per second; infinite: nothing waits."""
        self.rate = rate
        self.piece = FRAME_LIMIT if rate == math.inf else int(min(max(rate * TICK, LEAST), MOST))
        """Bytes to wait for at a time."""
        self._taken_until = memoryview(mmap.mmap(-1, 8)).cast("d")
        """One number: when all that has passed is over the line."""
        self._taken_until[0] = -math.inf
        self._order = asyncio.Lock()

    def in_averager(self) -> RateLimit:
        """The same limit for the averager's process, which is forked next."""
        other = RateLimit(self.rate)
        other._taken_until = self._taken_until
        return other

    def count(self, size: int) -> None:
        """`size` bytes go now: they are not held back, and bulk waits for them. Negative: so many awaited
        bytes did not come."""
        if self.rate < math.inf:
            begins = max(self._taken_until[0], asyncio.get_running_loop().time() - BURST)
            self._taken_until[0] = begins + size / self.rate

    async def wait(self, size: int) -> None:
        """Return when `size` bytes may go. A cancelled caller has sent nothing."""
        if self.rate == math.inf:
            return
        async with self._order:
            taken = self._taken_until[0] - asyncio.get_running_loop().time()
            if taken > 0:
                await asyncio.sleep(min(taken, PATIENCE * max(size, self.piece) / self.rate))
            self.count(size)


def rate_of(mbit: float) -> float:
    """Bytes per second of a limit; infinite for 0, which is none."""
    return mbit * 1e6 / 8 or math.inf


class RateLimits(NamedTuple):
    """Both directions."""

    up: RateLimit
    down: RateLimit

    @classmethod
    def of(cls, limits: Limits) -> RateLimits:
        return cls(RateLimit(rate_of(limits.upload)), RateLimit(rate_of(limits.download)))

    def in_averager(self) -> RateLimits:
        return RateLimits(self.up.in_averager(), self.down.in_averager())


UNLIMITED = RateLimits(RateLimit(), RateLimit())
