"""Student's t statistics: 95 % intervals of a mean, and which of many means differ from 0 (Holm)."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from functools import cache

LEVEL = 0.05


@cache
def student(freedom: int) -> float:
    """97.5 % quantile of Student's t with that many degrees of freedom, at least 1."""
    from scipy.stats import t  # its import takes a second

    return float(t.ppf(0.975, freedom))


def chance(values: Sequence[float]) -> float:
    """Two-sided p of Student's t test that the mean of these (two at least) is 0; 1 where one of them is not
    a number."""
    from scipy.stats import t

    mean = math.fsum(values) / len(values)
    if not (math.isfinite(mean) and mean):
        return 1.0
    error = statistics.stdev(values) / math.sqrt(len(values))
    return float(2 * t.sf(abs(mean) / error, len(values) - 1)) if error > 0 else 0.0


def holm(chances: Sequence[float]) -> list[int]:
    """Indices of the comparisons that stand at LEVEL after Holm's correction for their number (Holm 1979),
    smallest p first."""
    order = sorted(range(len(chances)), key=lambda i: chances[i])
    for rank, i in enumerate(order):
        if chances[i] > LEVEL / (len(order) - rank):
            return order[:rank]
    return order
