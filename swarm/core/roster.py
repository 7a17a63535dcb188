"""The roster: who is alive, from heartbeats alone.

A beat of a newer incarnation, or a later one of the same, replaces what is known; old beats that gossip delivers late are
ignored. Whoever is silent for longer than the run's patience is lost until it is heard again.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

from swarm.types import Beat, PeerId, Role


@dataclass(slots=True)
class Known:
    beat: Beat
    heard: float
    credit: int
    """The newest credit: a beat or a receipt tells it, each group sent spends one."""


class Roster:
    def __init__(self, patience: float) -> None:
        self._patience = patience
        self._known: dict[PeerId, Known] = {}

    def __iter__(self) -> Iterator[tuple[PeerId, Beat]]:
        return ((peer, known.beat) for peer, known in self._known.items())

    def __contains__(self, peer: PeerId) -> bool:
        return peer in self._known

    def beat(self, peer: PeerId) -> Beat | None:
        known = self._known.get(peer)
        return known.beat if known else None

    def hear(self, peer: PeerId, beat: Beat, now: float) -> bool:
        """False when the beat is older than what is known."""
        known = self._known.get(peer)
        if known is not None and (beat.incarnation, beat.seq) <= (known.beat.incarnation, known.beat.seq):
            return False
        self._known[peer] = Known(beat, now, beat.credit)
        return True

    def forget(self, peer: PeerId) -> None:
        self._known.pop(peer, None)

    def expire(self, now: float) -> list[tuple[PeerId, float]]:
        """Remove and return peers that are silent for too long, with the seconds of their silence."""
        lost = [(peer, now - known.heard) for peer, known in self._known.items() if now - known.heard > self._patience]
        for peer, _ in lost:
            del self._known[peer]
        return lost

    def learners(self) -> list[PeerId]:
        return sorted(peer for peer, known in self._known.items() if known.beat.role is Role.LEARNER)

    def holders(self, version: int) -> list[PeerId]:
        """Who may have a release's bytes: everybody at that version or beyond, learners and seeds first."""
        first = {Role.LEARNER: 0, Role.SEED: 1, Role.EVALUATOR: 2}
        found = [(first.get(known.beat.role, 3), peer) for peer, known in self._known.items() if known.beat.version >= version]
        return [peer for _, peer in sorted(found)]

    def credit(self, peer: PeerId, credit: int) -> None:
        """A receipt told the learner's credit."""
        if peer in self._known:
            self._known[peer].credit = credit

    def choose(self, rng: random.Random) -> PeerId | None:
        """A learner that has credit, drawn in proportion to it; one unit is spent. None when nobody has any."""
        open_ = [
            (peer, known) for peer, known in sorted(self._known.items()) if known.beat.role is Role.LEARNER and known.credit > 0
        ]
        if not open_:
            return None
        peer, known = rng.choices(open_, weights=[known.credit for _, known in open_])[0]
        known.credit -= 1
        return peer
