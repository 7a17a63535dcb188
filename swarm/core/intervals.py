"""What an evaluation measured, and its interval of 95 % over tasks that might have been drawn instead.

    right answers of n tasks                 --of_share--> (low, high)
    right ones of k samples of each task     --sampled-->  mean@k, pass@2, pass@4 ... pass@k: value, low, high

Wilson's interval for a share (Wilson 1927) keeps its 95 % near 0 and 1 and for few tasks, where the usual
share ± 1.96 standard errors does not (Brown, Cai and DasGupta, Statistical Science 2001). Samples of one task
are alike, so that the tasks count and not the samples (clusters: Miller, arXiv 2411.00640): a mean over tasks
has Wilson's interval for as many tasks as would give its variance (Dean and Pagano, Journal of Survey
Statistics and Methodology 2015).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from statistics import fmean, variance

from swarm.types import Estimate

Z = 1.96
"""Standard deviations on either side that hold 95 % of a normal distribution."""

Interval = tuple[float, float]


def of_share(share: float, tasks: float) -> Interval:
    """Of a share, 0 to 1, of so many tasks; 0 to 1 where there are none."""
    if tasks <= 0:
        return 0.0, 1.0
    spread = Z * Z / tasks
    half = math.sqrt(spread * (share * (1.0 - share) + spread / 4))
    low, high = ((share + spread / 2 + sign * half) / (1.0 + spread) for sign in (-1, 1))
    return max(min(low, share), 0.0), min(max(high, share), 1.0)  # rounding may end it beside 0 or 1


def sampled(right: Sequence[int], samples: int) -> dict[str, Estimate]:
    """`mean@k` and `pass@j`, j = 2, 4, 8 ... and k, of k = `samples` completions of each task, of which
    `right` were right; nothing without tasks."""
    if not right:
        return {}
    found = {f"mean@{samples}": _mean([count / samples for count in right], samples)}
    for k in _sizes(samples):
        found[f"pass@{k}"] = _mean([pass_at(k, count, samples) for count in right], samples)
    return found


def pass_at(k: int, right: int, samples: int) -> float:
    """The unbiased estimate of the chance that one of `k` completions is right, of `samples` >= k, `right` of
    which were (Chen et al., arXiv 2107.03374)."""
    return 1.0 - math.comb(samples - right, k) / math.comb(samples, k)


def _sizes(samples: int) -> Iterator[int]:
    k = 2
    while k < samples:
        yield k
        k *= 2
    if samples > 1:
        yield samples


def _mean(values: Sequence[float], samples: int) -> Estimate:
    """Of values, 0 to 1, one a task; `samples` of each task are at most so many tasks."""
    mean, count = fmean(values), len(values)
    most = mean * (1.0 - mean)  # the variance of values of 0 and 1, the largest
    worth = 1.0
    if most > 0 and count > 1:
        worth = min(max(most / max(variance(values), most / samples), 1.0), samples)
    low, high = of_share(mean, worth * count)
    return Estimate(value=mean, low=low, high=high)
