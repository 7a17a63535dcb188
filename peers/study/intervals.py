"""95 % Student intervals of a mean, for both studies."""

from __future__ import annotations

from functools import cache


@cache
def student(freedom: int) -> float:
    """97.5 % quantile of Student's t with that many degrees of freedom, at least 1."""
    from scipy.stats import t  # its import takes a second

    return float(t.ppf(0.975, freedom))
