"""Pool of streams to one service of one peer, and the calls that wait for answers on them.

    slots: a place for each call            idle: streams to use again            patient: calls that extend

Not handled here: opening a stream, closing the idle ones (swarm.net.messaging.mail).
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from swarm.net.messaging.streams import Stream

STREAMS_TO_ONE = 8
"""Streams open at once to one service of one peer; more do not make a link faster, and p2pd fails at 256 to
one peer."""


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
