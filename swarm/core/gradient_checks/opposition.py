"""Learners whose gradients point away from those of the others, round after round.

    cosine of a member's gradient with the mean without it, each round -> members that a member names
    members named by each member of a round                            -> members that are left out

Gradients of honest learners are of one policy and of tasks of one kind: their noise is independent, so that
a cosine is above 0 on average, and near 0 at the worst, however noisy a single one is. A reversed gradient is
below 0 by as much. A member whose mean is SURE standard errors below 0 is named for as long as it is: it is
still compared. Each member has seen other parts of the gradients, and all have to agree on the groups of a
round: a member named by more than half of the others is left out, by all. A minority is left out, never half.
Reducers are judged alike, by the share of a gradient in their means
(swarm.core.gradient_checks.reducer_checks). Not handled: a member that agrees with the others in most rounds
and opposes them in few.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Collection, Mapping, Sequence
from typing import TypeVar

from swarm.core.gradient_checks.clipping import Cosines

Name = TypeVar("Name", str, bytes)

ROUNDS = 64
"""Rounds that count: where noise is four times the signal, as in a simulated run of four learners with four
groups each, cosines are 0.06 and -0.04 with a spread of 0.07, and 64 rounds tell them apart."""

LEAST = 8
"""Rounds before any member is named: enough for a spread."""

SURE = 4.0
"""Standard errors: an honest member whose cosines are 0 on average is named in 3 of 100,000 windows."""


class Opposition:
    """The last rounds of each member, as one of them saw them."""

    def __init__(self) -> None:
        self._seen: dict[str, deque[float]] = {}

    def add(self, cosines: Mapping[str, float]) -> None:
        """Add one round. The record of an absent member is kept, for as long as it comes back."""
        for peer, cosine in cosines.items():
            self._seen.setdefault(peer, deque(maxlen=ROUNDS)).append(cosine)
        for peer in [peer for peer in self._seen if peer not in cosines][: max(0, len(self._seen) - ROUNDS)]:
            del self._seen[peer]

    def against(self, members: Collection[str]) -> Collection[str]:
        """Those of a round's members that the others are against."""
        return _minority([peer for peer in members if _is_sure(self._seen.get(peer, ()))], len(members))


class Opponents:
    """Members whose gradients oppose the others', by their cosines with the others' mean; where that is
    inconclusive, since one of them turns it, by those with each of the others."""

    def __init__(self) -> None:
        self._of_mean, self._of_each = Opposition(), Opposition()

    def add(self, cosines: Mapping[str, Cosines]) -> None:
        """Add one round."""
        self._of_mean.add({peer: its.mean for peer, its in cosines.items()})
        self._of_each.add({peer: its.middle for peer, its in cosines.items()})

    def against(self, members: Collection[str]) -> Collection[str]:
        """Those of a round's members that the others are against."""
        return self._of_mean.against(members) or self._of_each.against(members)


def left_out(named: Mapping[Name, Collection[Name] | None]) -> Collection[Name]:
    """Those of a round's members that more than half of the others name. `named`: by each member; None: it
    saw nothing of the gradients."""
    told = {member: set(its) - {member} for member, its in named.items() if its is not None}
    votes = Counter(peer for names in told.values() for peer in names)
    found = [peer for peer in named if 2 * votes[peer] > len(told.keys() - {peer})]
    return _minority(found, len(named))


def _minority(found: Sequence[Name], members: int) -> Sequence[Name]:
    return found if 2 * len(found) < members else ()


def _is_sure(cosines: Collection[float]) -> bool:
    return len(cosines) >= LEAST and is_below(cosines, SURE)


def is_below(values: Collection[float], errors: float) -> bool:
    """Whether the mean of two or more is so many standard errors below 0."""
    count = len(values)
    mean = sum(values) / count
    return mean < -errors * math.sqrt(sum((one - mean) ** 2 for one in values) / (count - 1) / count)
