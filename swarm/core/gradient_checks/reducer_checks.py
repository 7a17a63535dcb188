"""Whose means leave the gradients out that they are said to be of.

    my part, the mean that its reducer gave, my share of the weight -> presence of my part, each round
    presences over rounds                                           -> reducers that I doubt
    what the members of a round doubt -> who reduces nothing in it  (opposition.left_out)

Gradients of honest learners have noise of their own and are seldom opposed, so that the inner product of one
with the mean is its weight times its square, and more where they agree. A mean that is zeros, noise, or
turned around has none of it, whatever its norm. I doubt a reducer whose means have, over the rounds and
beyond chance (swarm.core.gradient_checks.opposition), less than HALF of my part; where most reducers' have
less, it is my gradient that was cut or left out. Most of the others have to doubt a member before it reduces
nothing, for one alone may lie. Its gradient counts as before. All members compute the same from what all
announced. Not handled: what a reducer adds beside the others' gradients (within the norm that a mean can
have); one that is false in few rounds.
"""

from __future__ import annotations

from swarm.core.gradient_checks.clipping import Agreement

HALF = 0.5
"""Between 1, my weight, and 0."""

MOST = 1.0
"""A presence counts as one within so much of HALF: where my part is next to nothing the quotient is noise."""


def presence(agreement: Agreement, share: float) -> float:
    """How much of my part is in a mean, beyond HALF, in [-MOST, MOST]. `agreement`: inner products of my part
    and the mean; `share`: what of my part belongs in the mean. 0 where that is nothing."""
    due = agreement.mine * share
    return min(MOST, max(-MOST, agreement.both / due - HALF)) if due > 0 else 0.0
