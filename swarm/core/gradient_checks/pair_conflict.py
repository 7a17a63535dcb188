"""Two learners whose gradients point away from each other, or differ grossly in length: neither is a
majority.

    cosine and norms of their gradients, each round of the two --PairConflict--> why they stop, or nothing

With two the mean is a plain one: a reversed gradient makes both stand still, one of four times the length
turns the mean. One of them is wrong, and no third one decides which. The statistic that names one of more
(swarm.core.gradient_checks.opposition) names the pair: neither steps for a while, in which a user may decide.
Both have to find it in the same round: a learner that is SURE announces it, and the other one joins in where
it is half as sure itself, so that no learner is stopped by a claim alone.

Where one gradient is far longer than the other, the longer one is scaled down
(swarm.core.gradient_checks.norm_screening): the honest one's, if the other one's is far too short. So two
also stop whose norms differ by more than FAR in most of their last rounds. Each round compares the two
gradients of one version, and nothing is compared with rounds before: norms that grow or fall for both are no
sign, a single extraordinary batch is none, and a learner that lies from its first round on has no honest
usual norm. Noise makes the gradient of fewer groups longer, by the square root of their number at most: a
gradient is too long if it is by either measure. Gradients of zeros say nothing of norms.

Not handled here: which of them is wrong; a recomputed gradient may show that
(peers.learner.agreement.rechecks).
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Collection, Mapping

from swarm.core.gradient_checks import norm_screening
from swarm.core.gradient_checks.clipping import Cosines
from swarm.core.gradient_checks.opposition import is_below

ROUNDS, LEAST, SURE = 128, 16, 5.0
"""Rounds that count, those before anything is found, and standard errors. Of gradients that have nothing in
common 2 of 1,000 runs of 10,000 rounds find it by chance, where cosines are .02 on average with a spread of
.07 none of 1,000; with -.04 (one is turned around) it takes 67 rounds, with -.1 and less 16."""

JOINS = SURE / 2
"""Standard errors for a learner when the other one announces that it is SURE."""

NORMS, FEW = 16, 8
"""Rounds whose norms count, and fewest before a conflict is found. Of two honest learners with one to eight
groups each none of 58 rounds had norms that differ by FAR; were it one in a hundred, in one direction, five
of eight would be so in 5 of 10^9 runs."""

FREEZE = 60.0, 3600.0
"""Seconds of the first freeze and of the longest; each is twice as long as the one before."""


OPPOSED = "its two members' gradients point away from each other: two have no majority"
"""Why a round is lost."""

UNEQUAL = "one of its two members' gradients is far longer than the other's: two have no majority"
"""The other reason."""


class PairConflict:
    """The last rounds of two, as one of them saw them; of another pair it begins anew."""

    def __init__(self) -> None:
        self._pair: frozenset[str] = frozenset()
        self._cosines = deque[float](maxlen=ROUNDS)
        self._longer = deque[str](maxlen=NORMS)
        """The learner whose gradient was too long in each round; empty: neither."""

    def add(
        self, cosines: Mapping[str, Cosines], claims: Mapping[str, norm_screening.AnnouncedNorm], groups: int
    ) -> None:
        """Add a round of any members, as they announced it, in a run whose batch has `groups` groups;
        `cosines` are empty for a member that reduced nothing."""
        if len(claims) != 2:
            return
        if self._pair != claims.keys():
            self._pair = frozenset(claims)
            self.forget()
        if cosines:
            self._cosines.append(next(iter(cosines.values())).mean)
        if all(claim.norm > 0 for claim in claims.values()):
            self._longer.append(_longer(claims, groups))

    def found(self, members: Collection[str], joins: bool = False) -> str:
        """Why these two stop, empty if they do not; `joins`: the other one announced it."""
        if self._pair != {*members}:
            return ""
        if len(self._cosines) >= LEAST and is_below(self._cosines, JOINS if joins else SURE):
            return OPPOSED
        most = max(map(self._longer.count, self._pair))
        often = most > len(self._longer) / (4 if joins else 2)
        return UNEQUAL if often and len(self._longer) >= FEW else ""

    def forget(self) -> None:
        """They are frozen: it takes as many rounds to find it again."""
        self._cosines.clear()
        self._longer.clear()


def _longer(claims: Mapping[str, norm_screening.AnnouncedNorm], groups: int) -> str:
    """Which of two has a gradient that is too long beside the other's; empty: none."""
    weights = [one.weight for one in norm_screening.screened_weights([*claims.values()], groups)]
    names, norms = [*claims], [claim.norm for claim in claims.values()]
    for k, other in ((0, 1), (1, 0)):
        fewer = max(1.0, math.sqrt(weights[other] / weights[k])) if weights[k] > 0 else math.inf
        if norms[k] > norm_screening.FAR * norms[other] * fewer:
            return names[k]
    return ""
