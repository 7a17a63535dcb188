"""Reducers whose means lack gradients that belong in them.

    a member's part, its reducer's mean, its share of the weight -> presence of the part, each round
    presences over rounds                                        -> reducers that this member doubts
    doubts of the members of a round -> members that reduce nothing in it  (opposition.left_out)

Gradients of honest learners have noise of their own and are seldom opposed, so that the inner product of one
with the mean is its weight times its square, and more where they agree. A mean that is zeros, noise, or
reversed has none of it, whatever its norm. A member doubts a reducer whose means have, over the rounds and
beyond chance (swarm.core.gradient_checks.opposition), less than HALF of its part; where most reducers' have
less, its own gradient was cut or left out. Most of the others have to doubt a member before it reduces
nothing, for one alone may lie. Its gradient counts as before. All members compute the same from the
announcements of all. Not handled: additions of a reducer to the others' gradients (within the norm that a
mean can have); a reducer that is false in few rounds.
"""

from __future__ import annotations

from swarm.core.gradient_checks.clipping import Agreement

HALF = 0.5
"""Between 1, my weight, and 0."""

MOST = 1.0
"""A presence counts as one within so much of HALF: where my part is next to nothing the quotient is noise."""


def presence(agreement: Agreement, share: float) -> float:
    """How much of this member's part is in a mean, beyond HALF, in [-MOST, MOST]. `agreement`: inner products
    of the part and the mean; `share`: the weight of the part in the mean. 0 where that is nothing."""
    due = agreement.mine * share
    return min(MOST, max(-MOST, agreement.both / due - HALF)) if due > 0 else 0.0
