"""Two learners whose gradients point away from each other: nobody is in the majority.

    cosine of their gradients, each round of the two --Discord--> they oppose each other, or not

With two the mean is a plain one: who turns its gradient around makes both stand still, who takes it four
times turns the mean. One of them is wrong, and no third one says which. The statistic that names one of more
(swarm.core.opposition) names the pair: neither steps for a while, in which somebody may decide. Both have to
find it in the same round: who is SURE announces it, and the other one joins in where it is half as sure
itself, so that nobody is stopped by a word alone. Not handled here: which of them is wrong; a gradient that
is computed again may tell (peers.roles.rechecks).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping

from swarm.core.clipping import Cosines
from swarm.core.opposition import is_below

ROUNDS, LEAST, SURE = 128, 16, 5.0
"""Rounds that count, those before anything is found, and standard errors. Of gradients that have nothing in
common 2 of 1,000 runs of 10,000 rounds find it by chance, where cosines are .02 on average with a spread of
.07 none of 1,000; with -.04 (one is turned around) it takes 67 rounds, with -.1 and less 16."""

JOINS = SURE / 2
"""Standard errors for who hears that the other one is SURE."""

FREEZE = 60.0, 3600.0
"""Seconds of the first freeze and of the longest; each is twice as long as the one before."""


OPPOSED = "its two members' gradients point away from each other: of two nobody is in the majority"
"""Why a round is lost."""


class Discord:
    """The last rounds of two, as one of them saw them; of another pair it begins anew."""

    def __init__(self) -> None:
        self._pair: frozenset[str] = frozenset()
        self._cosines = deque[float](maxlen=ROUNDS)

    def add(self, cosines: Mapping[str, Cosines]) -> None:
        """Add a round of any members."""
        if len(cosines) != 2:
            return
        if self._pair != cosines.keys():
            self._pair = frozenset(cosines)
            self._cosines.clear()
        self._cosines.append(next(iter(cosines.values())).mean)

    def found(self, members: Collection[str], joins: bool = False) -> bool:
        """Whether these are two that oppose each other; `joins`: the other one says so."""
        here = self._pair == {*members} and len(self._cosines) >= LEAST
        return here and is_below(self._cosines, JOINS if joins else SURE)

    def forget(self) -> None:
        """They are frozen: it takes LEAST rounds to find it again."""
        self._cosines.clear()
