"""The clipped mean of members' tensors (swarm.core.gradient_checks.clipping), and the members that were far
from it or against it."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from typing import NamedTuple

import torch

from swarm.core.gradient_checks.clipping import Agreement, Company, Cosines, agreements, clipped
from swarm.norm import norm

NAMED = 0.25
"""A member is named whose distances from the means were cut to less than this. Honest gradients of one norm
keep all, one of three times the norm of the others a third; four times the opposite of one keeps a sixth."""


LARGE = 1e38
"""Products of parts that are larger than this do not fit float32, though their norms are finite
(swarm.norm); they are scaled first."""


class Mean(NamedTuple):
    """What members' parts make together."""

    value: torch.Tensor
    """Float32."""
    kept: list[float]
    """See swarm.core.gradient_checks.clipping.Clipped."""
    agreements: list[Company]


def combine(parts: Sequence[torch.Tensor], weights: Sequence[float], out: Collection[int] = ()) -> Mean:
    """The clipped mean of float32 tensors of one shape, without the members `out`; where nothing is cut, the
    weighted mean."""
    products = _products(parts)
    judged = clipped(products, weights, out)
    value = torch.zeros_like(parts[0])
    for part, factor in zip(parts, weights if judged.is_mean else judged.factors, strict=True):
        value.add_(part, alpha=factor)
    if judged.is_mean:  # divided once, as in rounds that are recorded: their bits come again
        value.div_(sum(weights))
    return Mean(value, judged.kept, agreements(products, judged.factors))


def _products(parts: Sequence[torch.Tensor]) -> list[list[float]]:
    products = _dots(parts)
    if max(map(max, products)) < LARGE:
        return products
    largest = max(map(norm, parts))
    return [[product * largest**2 for product in row] for row in _dots([part / largest for part in parts])]


def _dots(parts: Sequence[torch.Tensor]) -> list[list[float]]:
    flat = [part.reshape(-1) for part in parts]
    half = [[float(one @ other) for other in flat[: k + 1]] for k, one in enumerate(flat)]
    return [[half[max(j, k)][min(j, k)] for j in range(len(flat))] for k in range(len(flat))]


NO_COMPANY = Company(Agreement(), ())


class Seen:
    """The findings of a round's parts about one member."""

    def __init__(self) -> None:
        self._kept, self._company = 0.0, NO_COMPANY

    def add(self, kept: float, company: Company) -> None:
        """Add a part, whose distance from the mean was cut to `kept`."""
        self._kept += kept**2 * company.mean.mine
        self._company = company if self._company is NO_COMPANY else self._company.and_of(company)

    @property
    def cosines(self) -> Cosines:
        """Of its parts with those of the others."""
        return self._company.cosines

    @property
    def share(self) -> float:
        """1 for a member that is not to be named."""
        whole = self._company.mean.mine
        share = math.sqrt(self._kept / whole) if whole else 1.0
        return share if share < NAMED else 1.0
