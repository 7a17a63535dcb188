"""Learners that wait for a round as this one does, and do not come to it: two that cannot dial each other
still receive each other's heartbeats through the rest of the swarm.

After MISSES such rounds in a row the two do not wait for each other, except in every second version, then in
every fourth, at last in every RETRY-th: they know it by its number, so that they try at the same time, though
one of them counts more misses. A common round ends it. Not handled here: which learner steps then
(peers.learner.agreement.common_round).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable

from swarm.types import PeerId

MISSES = 2
"""Missed rounds in a row: a busy machine or a lost message costs one or two, and each costs
`averaging.match` seconds."""

RETRY = 16
"""Most versions from one try to the next, a power of two: an eighth of a second of each version at the usual
match time."""


class MissedRounds:
    def __init__(self) -> None:
        self._missed = Counter[PeerId]()

    def expected(self, others: Iterable[PeerId], version: int) -> list[PeerId]:
        """Those that are worth waiting for in a round of this version."""
        return [peer for peer in others if version % self._period(peer) == 0]

    def _period(self, peer: PeerId) -> int:
        """Versions from one try to the next."""
        beyond = self._missed[peer] - MISSES + 1
        return 1 if beyond <= 0 else min(RETRY, 2**beyond)

    def ended(self, waited: Collection[PeerId], members: Collection[PeerId]) -> dict[PeerId, int]:
        """A round ended with `members`; `waited` waited for one of this version. Returns those that are no
        longer awaited, with their missed rounds in a row."""
        self.forget(members)
        missed = [peer for peer in waited if peer not in members]
        self._missed.update(missed)
        return {peer: count for peer in missed if (count := self._missed[peer]) >= MISSES}

    def missed(self) -> set[PeerId]:
        return {*self._missed}

    def forget(self, others: Iterable[PeerId]) -> None:
        """Try these anew."""
        for peer in others:
            del self._missed[peer]
