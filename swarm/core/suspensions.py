"""Suspensions: which peers are ignored here, why, with which evidence, until when, and how often before.

    suspend(peer, why, now) -> Suspension: `first` seconds, twice as long with each strike, at most `longest`
    of(peer, now)           -> the one in force
    lift(peer)              -> as if it had never been suspended

Strikes are remembered after a suspension has ended, as long as there is room. Times are seconds of the
caller's clock. Not handled here: what is a strike.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from swarm.types import PeerId

HOUR = 3600.0

LONGEST = 30 * 24 * HOUR
"""Seconds of a suspension at most: a key costs nothing, so that a longer one would meet only a peer that has
been mended."""

REMEMBERED = 4096
"""Most remembered peers. Beyond, the one whose suspension ends first is forgotten."""


class Suspension(NamedTuple):
    until: float
    strikes: int = 0
    """Times that it was suspended for what counts as a strike."""
    why: str = ""
    since: float = 0.0
    evidence: str = ""
    """Name of its evidence; empty without any."""

    def objection(self, now: float) -> str:
        """Why nothing is taken of the peer, and for how long."""
        return f"suspended for another {self.left(now)}: {self.why}"

    def left(self, now: float) -> str:
        """How long it still holds."""
        seconds = self.until - now
        for size, unit in ((24 * HOUR, "days"), (HOUR, "h"), (60.0, "min")):
            if seconds >= 1.5 * size:
                return f"{seconds / size:.0f} {unit}"
        return f"{seconds:.0f} s"


def reason_of(objection: str) -> str:
    """Why a peer is suspended, without for how long."""
    return objection.partition(": ")[2] or objection


class Suspensions:
    """All suspensions by one peer."""

    def __init__(self, first: float, longest: float = LONGEST, remembered: int = REMEMBERED) -> None:
        self._first, self._longest, self._remembered = first, longest, remembered
        self._all: dict[PeerId, Suspension] = {}

    def suspend(self, peer: PeerId, why: str, now: float, is_strike: bool = True) -> Suspension:
        """Without a strike for as long as the last time, or for the first length."""
        strikes = self.strikes(peer) + is_strike
        doublings = min(max(0, strikes - 1), 64)  # a float holds no more than 1,023 of them
        until = now + min(self._first * 2.0**doublings, self._longest)
        self._all.pop(peer, None)
        self._all[peer] = found = Suspension(until, strikes, why, now)
        if len(self._all) > self._remembered:
            others = (each for each in self._all if each != peer)
            del self._all[min(others, key=lambda each: self._all[each].until)]
        return found

    def of(self, peer: PeerId, now: float) -> Suspension | None:
        """The suspension in force, or None."""
        found = self._all.get(peer)
        return found if found is not None and now < found.until else None

    def last(self, peer: PeerId) -> Suspension | None:
        """The last one, whether it has ended or not."""
        return self._all.get(peer)

    def in_force(self, now: float) -> frozenset[PeerId]:
        """All that are suspended."""
        return frozenset(peer for peer, each in self._all.items() if now < each.until)

    def strikes(self, peer: PeerId) -> int:
        found = self._all.get(peer)
        return found.strikes if found is not None else 0

    def lift(self, peer: PeerId) -> None:
        """Forget all suspensions of a peer."""
        self._all.pop(peer, None)

    def all(self) -> dict[PeerId, Suspension]:
        """The last one of each peer, of the newest REMEMBERED."""
        return dict(self._all)

    def restore(self, earlier: Mapping[PeerId, Suspension]) -> None:
        """Restore the suspensions of an earlier life."""
        self._all |= earlier
