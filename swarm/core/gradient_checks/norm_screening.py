"""Weights of the members of an averaging round, with gradients of unusual norm scaled down.

    AnnouncedNorm(weight, norm, usual) of each member + the run's batch -> ScreenedWeight(weight, share) each

A weight is bounded by a member's share of the run's batch; of two members by the rest that the other one
leaves. A gradient is compared, by its L2 norm, with the median of the round and with the median of the rounds
before: beyond FAR times the larger of the two it is scaled down, and the more so the farther it is (a
redescending influence: Hampel et al., Robust Statistics, 1986): a gradient that is a thousand times too large
has almost no weight, while cut to the median its direction would still count as one learner's. All members
compute the same from the same claims; the parts that a member then sends are held to its claim by an
Allowance at each reducer.

Medians are low medians (of an even number the smaller middle one) and leave zeros out: with two members the
smaller gradient is the reference, and a learner whose groups all had equal rewards does not make outliers of
the others. A single gradient is compared with the rounds before alone; without any it has full weight, since
training on sparse rewards begins that way.

A group counts once: of two gradients with the same group, the second one has no weight. A sampler whose
receipt was lost with its learner may have brought it to both. Nor has the gradient of a member that most
others have proof against: its groups do not count.

Not handled: a gradient of an ordinary norm in a wrong direction (swarm.core.gradient_checks.recomputed).
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Collection, Iterable, Sequence
from statistics import median_low
from typing import NamedTuple

from swarm.core.agreement.trained import marks_of
from swarm.core.gradient_checks.majority import CROWD

FAR = 5.0
"""Times the median from which a gradient is scaled down. In simulated runs of four honest learners with one
or two groups each, the largest norm of a round was beyond 5 times its median in 1 of 147 rounds, and beyond
both medians in none."""

ROUNDS = 16
"""Rounds that the usual norm is taken from: enough that some have gradients above 0, few enough to follow
norms that fall during training."""

SLACK = 1.01
"""Times the announced norm that a member's parts may add up to: rounding to float16 is 0.05 % at most."""


class AnnouncedNorm(NamedTuple):
    """A member's announcement when a round's group forms."""

    weight: float
    norm: float
    """L2 norm of all its tensors together."""
    usual: float
    """Median norm of its recent rounds; 0: none."""


class ScreenedWeight(NamedTuple):
    """How a member's gradient counts in the mean."""

    weight: float
    share: float
    """Factor of its gradient: 1, or less when its norm is far beyond the usual."""


def once(
    claims: Sequence[AnnouncedNorm], marks: Sequence[bytes], out: Collection[int] = ()
) -> list[AnnouncedNorm]:
    """The claims, in their order, without the weight of gradients with a group that one before has, and of
    those at `out`. `marks`: of each gradient's groups (swarm.core.agreement.trained)."""
    counted, found = set[bytes](), list[AnnouncedNorm]()
    for k, (claim, packed) in enumerate(zip(claims, marks, strict=True)):
        claim = claim._replace(weight=0.0) if k in out else claim
        its = {*marks_of(packed)} if claim.weight > 0 else set()
        again = not counted.isdisjoint(its)
        found.append(claim._replace(weight=0.0) if again else claim)
        counted |= set() if again else its
    return found


def screened_weights(claims: Sequence[AnnouncedNorm], groups: int) -> list[ScreenedWeight]:
    """The standing of each claim, in their order, in a run whose batch has `groups` groups."""
    reference = usual_norm(claims)
    weights = [claim.weight for claim in claims if claim.weight > 0]
    share = math.ceil(groups / max(1, len(weights)))
    # Of more than two, a liar would take what the others left: half of a batch and more.
    spare = groups - sum(weights) if len(weights) < CROWD else -math.inf
    return [
        ScreenedWeight(
            weight=min(claim.weight, max(share, spare + claim.weight)),
            share=FAR * (reference / claim.norm) ** 2 if 0 < FAR * reference < claim.norm else 1.0,
        )
        for claim in claims
    ]


def usual_norm(claims: Sequence[AnnouncedNorm]) -> float:
    """The norm that those of the claims are compared with; 0 while there is none."""
    return max(
        _middle(_measured(claim.norm for claim in claims)),
        _middle([one.usual for one in claims if one.usual > 0]),
    )


def largest_mean_norm(claims: Sequence[AnnouncedNorm], judged: Sequence[ScreenedWeight]) -> float:
    """The largest norm that the mean can have: all gradients have the same direction and use their whole
    allowance."""
    norms = [one.share * claim.norm for claim, one in zip(claims, judged, strict=True)]
    weights = [one.weight for one in judged]
    return SLACK * sum(map(float.__mul__, map(float, weights), norms)) / sum(weights)


def _measured(norms: Iterable[float]) -> list[float]:
    """The norms above 0 that others are compared with; none when there is one, which would be compared with
    itself."""
    found = [norm for norm in norms if norm > 0]
    return found if len(found) > 1 else []


def _middle(values: Sequence[float]) -> float:
    return median_low(values) if values else 0.0


class Usual:
    """The usual norm, from a member's last rounds."""

    def __init__(self) -> None:
        self._rounds: deque[list[float]] = deque(maxlen=ROUNDS)

    def add(self, norms: Iterable[float]) -> None:
        """Add the announced norms of all members of one round."""
        self._rounds.append([norm for norm in norms if norm > 0])

    @property
    def rounds(self) -> int:
        """How many it is taken from."""
        return len(self._rounds)

    def norm(self) -> float:
        """The median; 0 while there is none."""
        return _middle([norm for norms in self._rounds for norm in norms])


class Allowance:
    """The part of a member's announced norm that its further parts may still use.

    Shares are powers of two: all members compute the same share from the same bytes, and multiplying by it
    rounds nothing.
    """

    def __init__(self, norm: float) -> None:
        self._left = (SLACK * norm) ** 2
        self.least = 1.0
        """The smallest share that a part has had."""

    def take(self, norm: float) -> float:
        """The share of a part of this norm that fits in the rest of the allowance: 1 for a member that
        announced the truth, 0 once nothing is left."""
        square = norm**2
        share = 1.0
        if square > self._left:
            # A tiny claim makes the quotient 0, though something is left.
            part = self._left / square
            share = 2.0 ** math.floor(math.log2(part) / 2) if part > 0 else 0.0
        self._left = max(0.0, self._left - square)
        self.least = min(self.least, share)
        return share
