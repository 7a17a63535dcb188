"""Which gradient a learner recomputes, and the consequences of the result.

    members of a round, now -> the member due      first those that were never verified here, then all in turn
    cosine and norms of its gradient and the recomputed one -> a strike, or none

A recomputation proves what a single peer sent, whatever the noise, and needs no majority. An unverified
member is due at once, so that one that lies from its first round on is found in as many rounds as there are
members. After that a recomputation of s seconds is followed by s (1 / share - 1) seconds without one, and the
order is drawn anew for each turn. Not handled here: how a gradient is recomputed
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
"""Most factor between the norms of the sent and the recomputed gradient."""

SILENT = 3
"""Times in a row without its groups that are a strike: a member that lost a message, or was restarted, serves
them the next time."""


class Rechecks:
    """Of one learner."""

    def __init__(self, rng: random.Random, share: float) -> None:
        """`share` of the time; `rng` is private."""
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
        """The member of a round whose gradient is to be recomputed."""
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
        """The objection to a member that sent `times` the norm of the recomputed gradient, in one numeric
        type where `alike`; None: they agree."""
        self._silent.pop(peer, None)
        if cosine >= (AGREE if alike else AGREE_OTHERWISE) and 1 / FAR <= times <= FAR:
            return None
        why = (
            f"it sent a gradient that its groups do not give: cosine {cosine:.3f}, {times:.3g} times the norm"
        )
        return self._suspensions.suspend(peer, why, now).why

    def showed_nothing(self, peer: PeerId, why: str, now: float) -> str | None:
        """A member's gradient cannot be recomputed -> the objection to it, or None."""
        self._silent[peer] = self._silent.get(peer, 0) + 1
        if self._silent[peer] < SILENT:
            return None
        why = f"it did not show what its gradient is of {SILENT} times in a row: {why}"
        return self._suspensions.suspend(peer, why, now).why

    def against(self, now: float) -> Collection[PeerId]:
        """Members with a strike."""
        return self._suspensions.in_force(now)
