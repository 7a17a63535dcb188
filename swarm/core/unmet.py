"""Learners that are heard but do not come to rounds: two that cannot dial each other hear each other through
the rest of the swarm, and one may say that it comes and stay away.

A round that one of them is in and the other one said to come to, and that did not have both, is missed.
After MISSES in a row the two do not wait for each other, except in every second version, then in every
fourth, at last in every RETRY-th: they know it by its number, so that they try at the same time, though one
of them counts more misses. A common round ends it. Not handled here: who steps then (swarm.core.solo_turns).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping

from swarm.types import PeerId

MISSES = 2
"""Missed rounds in a row: a busy machine or a lost message costs one or two, and each costs
`averaging.match` seconds."""

RETRY = 16
"""Most versions from one try to the next, a power of two: an eighth of a second of each version at the usual
match time."""


class Unmet:
    def __init__(self) -> None:
        self._missed: Counter[PeerId] = Counter()
        self._here: Mapping[PeerId, int] = {}
        """Other learners -> incarnation."""

    def expected(self, others: Iterable[PeerId], version: int) -> list[PeerId]:
        """Those that are worth waiting for in a round of this version."""
        return [peer for peer in others if version % self._period(peer) == 0]

    def _period(self, peer: PeerId) -> int:
        """Versions from one try to the next."""
        beyond = self._missed[peer] - MISSES + 1
        return 1 if beyond <= 0 else min(RETRY, 2**beyond)

    def ended(self, entered: Collection[PeerId], members: Collection[PeerId]) -> dict[PeerId, int]:
        """A round ended with `members`; `entered` said that they come to one, by their heartbeats.
        Returns those that are not waited for any more, with their missed rounds in a row."""
        for peer in members:
            del self._missed[peer]
        missed = [peer for peer in entered if peer not in members]
        self._missed.update(missed)
        return {peer: self._missed[peer] for peer in missed if self._missed[peer] >= MISSES}

    def forget(self, others: Mapping[PeerId, int]) -> None:
        """Only `others` are here, with these incarnations: who comes back later, or was started again, is
        tried anew."""
        for peer in [*self._missed]:
            if others.get(peer) != self._here.get(peer):
                del self._missed[peer]
        self._here = others
