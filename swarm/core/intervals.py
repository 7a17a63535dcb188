"""Intervals of 95 % for what an evaluation measured, over tasks that might have been drawn instead.

    right answers of n tasks --of_share--> (low, high)

Wilson's interval for a share (Wilson 1927), which keeps its 95 % near 0 and 1 and for few tasks, where the
usual share ± 1.96 standard errors does not (Brown, Cai and DasGupta, Statistical Science 2001).
"""

from __future__ import annotations

import math

Z = 1.96
"""Standard deviations on either side that hold 95 % of a normal distribution."""

Interval = tuple[float, float]


def of_share(share: float, tasks: int) -> Interval:
    """Of a share, 0 to 1, of so many tasks; 0 to 1 where there are none."""
    if tasks <= 0:
        return 0.0, 1.0
    spread = Z * Z / tasks
    half = math.sqrt(spread * (share * (1.0 - share) + spread / 4))
    low, high = ((share + spread / 2 + sign * half) / (1.0 + spread) for sign in (-1, 1))
    return max(min(low, share), 0.0), min(max(high, share), 1.0)  # rounding may end it beside 0 or 1
