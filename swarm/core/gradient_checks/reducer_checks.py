"""Reducers whose means lack gradients that belong in them.

    a member's part, its reducer's mean, its share of the weight -> presence of the part, each round
    presences over rounds                                        -> reducers that this member doubts
    doubts of the members of a round -> members that reduce nothing in it       (majority.named_by_most)

Gradients of honest learners have noise of their own and are seldom opposed, so that the inner product of one
with the mean is its weight times its square, and more where they agree. A mean that is zeros, noise, or
reversed has none of it, whatever its norm. A member doubts a reducer whose means have, over the last rounds
and beyond chance, less than HALF of its part; where most reducers' have less, its own gradient was left out.
Most of the others have to doubt a member before it reduces nothing, for one alone may lie. Its gradient
counts as before. All members compute the same from the announcements of all. Not handled: additions of a
reducer to the others' gradients (within the norm that a mean can have); a reducer that is false in few
rounds.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Collection, Mapping

from swarm.core.gradient_checks.inner_products import InnerProducts
from swarm.core.gradient_checks.majority import minority

HALF = 0.5
"""Between 1, my weight, and 0."""

MOST = 1.0
"""A presence counts as one within so much of HALF: where my part is next to nothing the quotient is noise."""

ROUNDS = 64
"""Rounds that count, of which each has noise of its own."""

LEAST = 8
"""Rounds before any reducer is doubted: enough for a spread."""

SURE = 4.0
"""Standard errors below HALF from which a reducer is doubted."""


def presence(products: InnerProducts, share: float) -> float:
    """How much of this member's part is in a mean, beyond HALF, in [-MOST, MOST]. `products`: of the part and
    the mean; `share`: the weight of the part in the mean. 0 where that is nothing."""
    due = products.one * share
    return min(MOST, max(-MOST, products.both / due - HALF)) if due > 0 else 0.0


class Presences:
    """Reducer -> how much of one member's parts was in its means, in the last rounds."""

    def __init__(self) -> None:
        self._seen: dict[str, deque[float]] = {}

    def add(self, presences: Mapping[str, float]) -> None:
        """Add one round. The record of an absent reducer is kept, for as long as it comes back."""
        for peer, present in presences.items():
            self._seen.setdefault(peer, deque(maxlen=ROUNDS)).append(present)
        absent = [peer for peer in self._seen if peer not in presences]
        for peer in absent[: max(0, len(self._seen) - ROUNDS)]:
            del self._seen[peer]

    def doubted(self, members: Collection[str]) -> Collection[str]:
        """The reducers that this member doubts among a round's members."""
        found = [peer for peer in members if _is_below_half(self._seen.get(peer, ()))]
        return minority(found, len(members))


def _is_below_half(presences: Collection[float]) -> bool:
    """Whether the mean of these is SURE standard errors below 0."""
    if len(presences) < LEAST:
        return False
    count, mean = len(presences), sum(presences) / len(presences)
    return mean < -SURE * math.sqrt(sum((one - mean) ** 2 for one in presences) / (count - 1) / count)
