"""Outcomes of sending a group to a learner, and what the sampler does next, as a table.

    (a receipt's verdict | no receipt, and why) -> done, dropped, again to the same learner, or to another one

The table is total: whatever a delivery ends in is in it. A group that may lie at a learner already goes to
the same one again, which knows it by its id; a group that certainly does not may go to any. Both come after a
pause that grows while nothing is taken: one for the group, and one for everything that goes to that learner
(swarm.core.roster).
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
    """The group fits no message: it cannot be sent to anybody."""


Outcome = Verdict | DeliveryLoss


class Then(StrEnum):
    """What a sampler does with the group."""

    DONE = "done"
    DROPPED = "dropped"
    """Gone, and counted as refused."""
    AGAIN = "again"
    """To the same learner after a pause, while it lives."""
    ELSEWHERE = "elsewhere"
    """To whichever learner has credit, after a pause."""


TABLE: dict[Outcome, Then] = {
    Verdict.ADMIT: Then.DONE,
    Verdict.DUPLICATE: Then.DONE,  # an earlier delivery of it arrived, and its receipt did not
    Verdict.STALE: Then.DROPPED,
    Verdict.MALFORMED: Then.DROPPED,
    Verdict.UNTRUSTED: Then.DROPPED,
    Verdict.UNSCORED: Then.DROPPED,
    Verdict.OVER_QUOTA: Then.ELSEWHERE,
    DeliveryLoss.REFUSED: Then.ELSEWHERE,
    DeliveryLoss.UNREACHABLE: Then.AGAIN,
    DeliveryLoss.SILENT: Then.AGAIN,
    DeliveryLoss.DAMAGED: Then.AGAIN,
    DeliveryLoss.TOO_LARGE: Then.DROPPED,
}


def pause(last: float, rng: random.Random) -> float:
    """Seconds of the pause after one of `last` (0: there was none): doubled up to LONGEST, and a quarter more
    or less."""
    return min(LONGEST, max(SHORTEST, 2 * last)) * rng.uniform(0.75, 1.25)
