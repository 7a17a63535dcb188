"""Limits on gossip: a rate for each key, one for all strangers; offenders are suspended.

    message --size, rates--> taken --content--> `blame`, where no program of this run sends it
                  |                                    |
               dropped        offences of one author --'--> suspended (swarm.core.suspensions)

An offence is a message that no program of this run sends: too large, not a frame of the run, signed by
another peer, or beyond the rate of a key. Peers that are proven (members, and peers that have delivered) have
a larger rate, of their own alone. p2pd passes messages on before this program sees them, so that each peer
suspends an offender for itself; a peer connected with one hangs up (swarm.net.libp2p.node). Not handled here:
the validity of a frame (peers.runtime.kernel).
"""

from __future__ import annotations

from collections.abc import Callable

from swarm.core.budget import UNBOUNDED, Budget
from swarm.core.suspensions import Suspensions
from swarm.limits import EVENT_LIMIT
from swarm.types import PeerId

RATE, BURST = 64.0, 512.0
"""Units a second (a message, and a KiB) of one author that is not proven: a sampler's heartbeats are below
5."""

PROVEN_RATE, PROVEN_BURST = 8 * RATE, 8 * BURST
"""The same for a proven peer: a learner reports its actions and releases at once. With several versions a
second it is below 20 units, with twenty of a tiny model, alone, above 64. Reading as many takes a fifteenth
of a core."""

STRANGERS_RATE, STRANGERS_BURST = 2000.0, 8000.0
"""The same over all authors that are not proven: a thousand of them at a heartbeat each two seconds. To read
as many takes a quarter of a core."""

OFFENCES_RATE, OFFENCES_BURST = 1.0, 32.0
"""Offences of one author that have no consequence: a bug of one message, or a key that was old."""

SUSPENDED, LONGEST = 30.0, 600.0
"""Seconds of the first suspension, and of the longest."""

AUTHORS = 4096
"""Authors that are remembered."""


class GossipLimits:
    """What one peer accepts from others. Times are in seconds of `now`."""

    def __init__(self, proven: Callable[[PeerId], bool], now: Callable[[], float]) -> None:
        self._proven, self._now = proven, now
        self._rates = {
            False: Budget((RATE, BURST), UNBOUNDED, AUTHORS),
            True: Budget((PROVEN_RATE, PROVEN_BURST), UNBOUNDED, AUTHORS),
        }
        """By whether an author is proven."""
        self._strangers = Budget((STRANGERS_RATE, STRANGERS_BURST), UNBOUNDED, 1)
        """For all of them, under one name."""
        self._offences = Budget((OFFENCES_RATE, OFFENCES_BURST), UNBOUNDED, AUTHORS)
        self._suspensions = Suspensions(SUSPENDED, LONGEST, AUTHORS)

    def admits(self, author: PeerId, size: int) -> bool:
        """Whether a message of so many bytes is read."""
        if self.is_suspended(author):
            return False
        if size > EVENT_LIMIT.sealed:
            self.blame(author)
            return False
        now, units, proven = self._now(), 1 + size / 1024, self._proven(author)
        if not self._rates[proven].take(author, units, now):
            self.blame(author)
            return False
        return proven or self._strangers.take(None, units, now)

    def blame(self, author: PeerId) -> float:
        """An author sent a message that no program of this run sends -> seconds for which it is suspended, or
        0."""
        now = self._now()
        if self.is_suspended(author) or self._offences.take(author, 1.0, now):
            return 0.0
        return self._suspensions.suspend(author, "it says what no program of this run says", now).until - now

    def suspended(self) -> frozenset[PeerId]:
        """All authors that are suspended now."""
        return self._suspensions.in_force(self._now())

    def is_suspended(self, author: PeerId) -> bool:
        """Whether nothing of an author is read now."""
        return self._suspensions.of(author, self._now()) is not None
