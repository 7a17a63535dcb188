"""How many samplers the learners can use, by how long each waits for the other.

    the last steps --> share of their time in which learners wait for groups
    heartbeats     --> share of their time in which samplers sample          --balance--> a sentence, or none

Nothing is said where neither waits long, where both do (something else is slow), or of a swarm in which this
window hears no samplers. Learners' seconds and samplers' busy shares are what they claim: the sentence
advises, and nothing follows from it.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from dashboard.diagnosis.situation import Situation
from swarm.protocol import Role

if TYPE_CHECKING:
    from dashboard.fold.state import State

STEPS = 16
"""Steps of learners before anything is said: the first ones wait for everybody to come."""

HUNGRY, FED = 0.25, 0.05
"""Share of their time in which learners wait for groups: from the first on there are too few, below the
second enough. A batch is never there to the second, so that some waiting stays."""

BUSY, IDLE = 0.8, 0.6
"""Share of their time in which samplers sample: from the first on they do all they can, below the second they
have time for more. They adopt policies and draw tasks in the rest."""


def balance(state: State, now: float) -> str:
    """A sentence about how many samplers more, or less, the learners can use; empty where they have what they
    use."""
    situation, spent = Situation(state, now), state.recent.spent
    samplers = situation.working(Role.SAMPLER)
    if len(spent) < STEPS or not samplers or not situation.hears(Role.SAMPLER):
        return ""
    waits = sum(gather for gather, _ in spent) / max(sum(whole for _, whole in spent), 1e-9)
    busy = sum(peer.busy for peer in samplers) / len(samplers)
    if HUNGRY <= waits < 1.0 and busy >= BUSY:
        return _more(math.ceil(len(samplers) * waits / (1.0 - waits)), waits)
    used = max(1, math.ceil(len(samplers) * busy))
    if waits <= FED and busy <= IDLE and used < len(samplers):
        return (
            f"The samplers have nothing to do in {1.0 - busy:.0%} of their time: the learners can use the"
            f" groups of about {used} of these {len(samplers)}."
        )
    return ""


def _more(count: int, waits: float) -> str:
    samplers = "1 more sampler" if count == 1 else f"{count} more samplers"
    return (
        f"The learners wait for groups in {waits:.0%} of their time: about {samplers} like those here would"
        " be of use."
    )
