"""A sampler's next step after each outcome of sending a group to a learner, as a table.

    (a receipt's verdict | the reason why there is none) -> done, dropped, to the same learner, to another one

The table is total: it has every outcome of a delivery. A group that may have reached a learner goes to the
same one again, which knows it by its id; a group that certainly did not may go to any. Both come after a
pause that grows while nothing is accepted: one for the group, and one for everything that goes to that
learner (swarm.core.roster).
"""

from __future__ import annotations

import random
from enum import StrEnum

from swarm.types import Verdict

SHORTEST, LONGEST = 0.05, 8.0
"""Seconds of the first pause and, about, of the longest: a learner that was overtaken for a moment takes
groups again after one round trip, one that restarts is back in a few seconds."""


class DeliveryLoss(StrEnum):
    """Why there is no receipt."""

    REFUSED = "refused"
    """The learner refused to judge it: it is busy, or its judging broke."""
    UNREACHABLE = "unreachable"
    SILENT = "silent"
    DAMAGED = "damaged receipt"
    """Its answer is not a receipt."""
    TOO_LARGE = "too large"
    """The group fits no message: it cannot be sent at all."""


Outcome = Verdict | DeliveryLoss


class NextStep(StrEnum):
    """The sampler's next action for the group."""

    DONE = "done"
    DROPPED = "dropped"
    """Gone, and counted as refused."""
    AGAIN = "again"
    """To the same learner after a pause, while it lives."""
    ELSEWHERE = "elsewhere"
    """To whichever learner has credit, after a pause."""


TABLE: dict[Outcome, NextStep] = {
    Verdict.ADMIT: NextStep.DONE,
    Verdict.DUPLICATE: NextStep.DONE,  # an earlier delivery of it arrived, and its receipt did not
    Verdict.STALE: NextStep.DROPPED,
    Verdict.MALFORMED: NextStep.DROPPED,
    Verdict.UNTRUSTED: NextStep.DROPPED,
    Verdict.UNSCORED: NextStep.DROPPED,
    Verdict.UNVERIFIED: NextStep.DROPPED,
    Verdict.OVER_QUOTA: NextStep.ELSEWHERE,
    DeliveryLoss.REFUSED: NextStep.ELSEWHERE,
    DeliveryLoss.UNREACHABLE: NextStep.AGAIN,
    DeliveryLoss.SILENT: NextStep.AGAIN,
    DeliveryLoss.DAMAGED: NextStep.AGAIN,
    DeliveryLoss.TOO_LARGE: NextStep.DROPPED,
}


def pause(last: float, rng: random.Random) -> float:
    """Seconds of the pause after one of `last` (0: there was none): doubled up to LONGEST, and a quarter more
    or less."""
    return min(LONGEST, max(SHORTEST, 2 * last)) * rng.uniform(0.75, 1.25)
