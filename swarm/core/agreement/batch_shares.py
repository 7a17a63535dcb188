"""Shares of the run's batch by learners' speed, so that all members have their gradients at one time, and how
long finished members wait for the rest.

    speed of each member (groups a second, by its heartbeats) --> its share of the batch
    the others have waited for one member --> groups by which its next batch is smaller
    finished shares, unfinished shares --> seconds that waiting is worth

A round waits for its last gradient. With equal shares a member that is half as fast makes all others wait for
as long as they compute, or comes too late for every round; with shares by speed each has a gradient of as
many groups as it can by then. The gradients are weighted by their groups, so the mean is that of the batch.

A member's claim about its speed is trusted within limits: as CLAIM times the low median at most. Its weight
in the round has bounds of its own (swarm.core.gradient_checks.norm_screening). Speeds within BAND of each
other give equal shares: a machine's measurements of itself vary.

Not handled: memory, since a gradient takes a batch in microbatches of the size that fits.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from statistics import median_low

from swarm.core.agreement.state_sync import SLOWER

CLAIM = 4
"""Most times the low median of all speeds that one counts as: as for lines (swarm.core.agreement.shares)."""

BAND = 1.25
"""Times the slowest speed up to which shares are equal. On two cores that a whole swarm uses, seconds a group
of one learner vary by a tenth from batch to batch, their smoothed values by a twentieth."""


ROUNDING = 1e-9
"""Groups: a product this close below a whole number counts as that number."""

LATER, PART = 0.05, 0.2
"""Of a round's time, and of a group: by so much a member may end later than the first that has its share.
Members of one speed, by measurements that vary, have the same number, and no large batch grows by it."""

BISECTIONS = 50
"""Halvings of a time of at most some thousand groups, until less than ROUNDING is left."""


def batch_shares(speeds: Sequence[float]) -> list[float]:
    """The share of each member, in their order, adding up to 1. Speeds are in groups a second; one of 0 is
    not known yet and counts as the low median of the known ones."""
    known = [speed for speed in speeds if speed > 0]
    usual = median_low(known) if known else 1.0
    counted = [min(speed or usual, CLAIM * usual) for speed in speeds]
    if max(counted) <= BAND * min(counted):
        return [1 / len(counted)] * len(counted)
    return [speed / sum(counted) for speed in counted]


@lru_cache(maxsize=16)  # asked at each receipt, and heartbeats alone change it
def in_groups(shares: tuple[float, ...], groups: int) -> list[int]:
    """Shares of a batch of `groups` in whole groups: as many as each member computes until together they have
    the batch. So no slow member makes the others wait for a group that they would have computed by then,
    members of one speed have the same number, and a member that computes none by then has none."""
    early, late = 0.0, float(groups + len(shares))
    for _ in range(BISECTIONS):
        middle = (early + late) / 2
        counts = (math.floor(share * middle + ROUNDING) for share in shares)
        early, late = (middle, late) if sum(counts) < groups else (early, middle)
    return [math.floor(share * late + min(share * late * LATER, PART) + ROUNDING) for share in shares]


def fewer(waited: Sequence[float], speed: float, share: int) -> int:
    """Groups by which the next batch of a member that learns ahead is smaller than its `share`: as many as it
    computes, at `speed`, in the seconds for which most others have `waited` for it, half of its share at
    most. Gradients of one length never catch up: a member that began later than the others would be as late
    in each round, and where that is almost as long as a gradient, they would wait each time."""
    return min(math.floor(median_low(waited) * speed), share // 2) if waited else 0


def worth_waiting(took: float, ready: float, learning: float) -> float:
    """Most seconds that members with a share of `ready` wait for others with a share of `learning`, where a
    gradient takes `took` seconds. Beyond, a round of the ready ones alone trains on more groups a second:
    ready / took > (ready + learning) / (took + seconds). A learner that takes SLOWER times as long is not
    awaited."""
    return took * min(learning / ready, SLOWER)
