"""The mean of several gradients of which some may lie: each is pulled towards the agreement of most of them.

    inner products of the members' parts, weights -> factor of each part, and whose distance was cut

CenteredClip (Karimireddy et al. 2021, arXiv 2012.10333; by parts: ButterflyClip of Gorbunov et al. 2022,
arXiv 2106.11257): the mean is where the differences from it, each cut to a radius, add up to nothing. It
begins at the member to which the others are nearest, by the median of their distances d. A round in which no
member is farther than FAR d from the weighted mean has that mean, unchanged: of honest members, whose
gradients have noise of their own, hardly one is. Else the radius is d / sqrt(2), for such members are that
much nearer to their common part than to each other. All of it is arithmetic on inner products: the parts are
added up once.

Parts of zeros neither agree nor disagree: a learner whose groups all had equal rewards has no signal. With
fewer than CROWD others there is no majority, and the mean stays as it is. Not handled: a minority's influence
within the radius, which can slow training down where noise is much larger than the signal.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from statistics import median_high, median_low
from typing import NamedTuple

CROWD = 3
"""Members of which a single liar is a minority."""

ROUNDS = 50
"""Most steps towards the mean; each of them costs members^2 multiplications."""

FAR = 1.5
"""Times the median distance of members from one of them that a member may have from the mean. Of four whose
noise is as large as the signal, the opposite of a gradient is at 1.4, and five times that at 3.6."""


class Clipped(NamedTuple):
    """How members' parts make the mean."""

    factors: list[float]
    """Of each part in the sum that is the mean."""
    kept: list[float]
    """Share of each part's distance from the mean that counts: 1 where it was not cut."""

    @property
    def is_mean(self) -> bool:
        """Nothing was cut."""
        return min(self.kept) == 1


def clipped(
    products: Sequence[Sequence[float]], weights: Sequence[float], out: Collection[int] = ()
) -> Clipped:
    """`products` (n, n): inner products of the parts, finite; `weights` (n,) of which some are above 0; the
    members `out` count for nothing, unless no other has a weight."""
    others = [0.0 if k in out else weight for k, weight in enumerate(weights)]
    weights, out = (others, out) if sum(others) > 0 else (weights, ())
    total, whole = sum(weights), [float(k not in out) for k in range(len(weights))]
    mean = [weight / total for weight in weights]
    said = [k for k in range(len(weights)) if products[k][k] > 0 and weights[k] > 0]
    if len(said) < CROWD:
        return Clipped(mean, whole)
    center, radius = _center(products, said)
    share = sum(mean[k] for k in said)
    pull = [mean[k] / share if k in said else 0.0 for k in range(len(weights))]
    if min(_kept(products, pull, said, FAR * radius)) == 1:
        return Clipped(mean, whole)
    radius /= math.sqrt(2)
    at = [float(k == center) for k in range(len(weights))]
    for _ in range(ROUNDS):
        kept = _kept(products, at, said, radius)
        pulled = [weight * part for weight, part in zip(pull, kept, strict=True)]
        left = 1 - sum(pulled)
        at = [left * before + part for before, part in zip(at, pulled, strict=True)]
    return Clipped([share * factor for factor in at], [a * b for a, b in zip(whole, kept, strict=True)])


class Agreement(NamedTuple):
    """Inner products of two vectors, such as one member's part and the mean without it; those of further
    parts add up."""

    both: float = 0.0
    mine: float = 0.0
    others: float = 0.0

    def and_of(self, more: Agreement) -> Agreement:
        """Of the parts of both."""
        return Agreement(*map(float.__add__, self, more))

    @property
    def cosine(self) -> float:
        """0 where one of them is zeros."""
        return self.both / math.sqrt(self.mine * self.others) if self.mine * self.others > 0 else 0.0


class Company(NamedTuple):
    """One member's part beside those of the others."""

    mean: Agreement
    """With their mean."""
    each: tuple[Agreement, ...]
    """With the part of each, in the order of the members."""

    def and_of(self, more: Company) -> Company:
        """Of the parts of both."""
        each = tuple(one.and_of(other) for one, other in zip(self.each, more.each, strict=True))
        return Company(self.mean.and_of(more.mean), each)

    @property
    def cosines(self) -> Cosines:
        """The overall cosine and its middle."""
        return Cosines(self.mean.cosine, median_high([one.cosine for one in self.each] or [0.0]))


class Cosines(NamedTuple):
    """Of a member's gradient with those of the others, in one round."""

    mean: float
    """With their mean."""
    middle: float
    """The median of those with each of them: one that is large turns their mean, and not this."""


def agreements(products: Sequence[Sequence[float]], factors: Sequence[float]) -> list[Company]:
    """Of each member, in a mean that is made with these factors."""
    found = []
    for k, row in enumerate(products):
        rest = [0.0 if other == k else factor for other, factor in enumerate(factors)]
        square = sum(a * sum(map(float.__mul__, rest, of)) for a, of in zip(rest, products, strict=True))
        mean = Agreement(sum(map(float.__mul__, rest, row)), row[k], max(0.0, square))
        each = tuple(Agreement(row[j], row[k], of[j]) for j, of in enumerate(products) if j != k)
        found.append(Company(mean, each))
    return found


def _center(products: Sequence[Sequence[float]], said: Sequence[int]) -> tuple[int, float]:
    """The part from which the others are nearest by the median, and that median."""
    medians = {
        one: median_low(
            math.sqrt(max(0.0, products[one][one] + products[other][other] - 2 * products[one][other]))
            for other in said
            if other != one
        )
        for one in said
    }
    center = min(said, key=lambda one: medians[one])
    return center, medians[center]


def _kept(
    products: Sequence[Sequence[float]], at: Sequence[float], said: Sequence[int], radius: float
) -> list[float]:
    """The remaining part of each distance from sum_k at_k part_k."""
    with_it = [sum(map(float.__mul__, at, row)) for row in products]
    square, kept = sum(map(float.__mul__, at, with_it)), [1.0] * len(at)
    for k in said:
        distance = math.sqrt(max(0.0, square - 2 * with_it[k] + products[k][k]))
        if distance > radius:
            kept[k] = radius / distance
    return kept
