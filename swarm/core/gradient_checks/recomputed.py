"""Whose gradient a learner computes again, and what follows from what it finds.

    members of a round, now -> whose is due         peers that nobody verified here first, then all in turn
    cosine and norms of what it sent and what its groups give -> a strike, or none

A recomputation proves what a single peer sent, whatever the noise, and needs no majority. Who never was
verified is due at once, so that one that lies from its first round on is found in as many rounds as there are
members. After that a recomputation of s seconds is followed by s (1 / share - 1) seconds without one, and the
order is drawn anew for each turn. Not handled here: how a gradient is computed again
(peers.learner.agreement.rechecks).
"""

from __future__ import annotations

import random
from collections.abc import Collection

from swarm.core.suspensions import HOUR, Suspensions
from swarm.types import PeerId

AGREE, AGREE_OTHERWISE = 0.99, 0.95
"""Least cosine, where both compute in numbers of one type and where not. Codecs of a round (float16, int8)
and other chunks and threads in bfloat16 leave .9999, bfloat16 beside float32 .9991 with six layers, and less
with more (docs/trust.md); another one's gradient of the same policy has less than .5."""

FAR = 2.0
"""Most factor between the norms of what was sent and what was computed."""

SILENT = 3
"""Times in a row that a member does not show its groups, which is a strike: one whose mail was lost, or that
was started again, shows them the next time."""


class Rechecks:
    """Of one learner."""

    def __init__(self, rng: random.Random, share: float) -> None:
        """`share` of the time; `rng` is nobody else's."""
        self._rng, self._share = rng, share
        self._rests_until = 0.0
        self._turn: list[PeerId] = []
        """Members that were seen and are due before the others are again."""
        self._known: set[PeerId] = set()
        """Those that were due once."""
        self._silent: dict[PeerId, int] = {}
        self._suspensions = Suspensions(HOUR, longest=HOUR)
        """Of members with a strike: each holds for an hour."""

    def due(self, members: Collection[PeerId], now: float) -> PeerId | None:
        """Whose gradient of a round of `members` is to be computed again."""
        if (new := sorted(set(members) - self._known)) and self._share > 0:
            return self._rng.choice(new)
        if now < self._rests_until or not members or not self._share > 0:
            return None
        if not (left := [peer for peer in self._turn if peer in members]):
            self._turn = left = self._rng.sample(sorted(members), len(members))
        return left[0]

    def spent(self, peer: PeerId, seconds: float, now: float) -> None:
        """A recomputation is over."""
        self._known.add(peer)
        self._turn = [each for each in self._turn if each != peer]
        self._rests_until = now + seconds * (1 / self._share - 1)

    def found(self, peer: PeerId, cosine: float, times: float, alike: bool, now: float) -> str | None:
        """What is to be said of a member that sent `times` the norm of what was computed, in numbers of one
        type where `alike`; None: they agree."""
        self._silent.pop(peer, None)
        if cosine >= (AGREE if alike else AGREE_OTHERWISE) and 1 / FAR <= times <= FAR:
            return None
        why = (
            f"it sent a gradient that its groups do not give: cosine {cosine:.3f}, {times:.3g} times the norm"
        )
        return self._suspensions.suspend(peer, why, now).why

    def showed_nothing(self, peer: PeerId, why: str, now: float) -> str | None:
        """A member's gradient cannot be computed again -> what is to be said of it, or None."""
        self._silent[peer] = self._silent.get(peer, 0) + 1
        if self._silent[peer] < SILENT:
            return None
        why = f"it did not show what its gradient is of {SILENT} times in a row: {why}"
        return self._suspensions.suspend(peer, why, now).why

    def against(self, now: float) -> Collection[PeerId]:
        """Members with a strike."""
        return self._suspensions.in_force(now)
