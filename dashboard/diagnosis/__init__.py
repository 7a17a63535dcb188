"""What is wrong, in plain sentences with cause and next step; nothing when all is well.

    SwarmState (with its Recent) + now -> Situation -> one rule after the other -> problems, errors first

Rules are small functions of a Situation, in the order of their finding's cost to the swarm; a problem keeps
its key while it lasts. Pure: the same state and time give the same problems. The thresholds of time follow
from the run's pace and from the usual values of the last minutes; a peer that has just come is given time.
False alarms are worse than late ones: a rule that is unsure has no result. Not handled here: earlier problems
(the list of events has them).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from msgspec.structs import replace

from dashboard.diagnosis import apart, learners, learning, parts, presence, samplers
from dashboard.diagnosis.situation import Situation, strange
from dashboard.fold.folds import fold
from dashboard.fold.state import SwarmState
from dashboard.views import Problem
from swarm.events import Event

LONGEST = 24
"""Problems at once: more than a person reads; those that cost least are left out."""

RULES: tuple[Callable[[Situation], Iterable[Problem]], ...] = (
    presence.loading,
    presence.lost,
    presence.absent,
    presence.awaited,
    learners.stopped,
    apart.split,
    apart.forked,
    apart.unreached,
    learners.stuck,
    learning.weights,
    learning.divergence,
    learning.gradients,
    learning.reward,
    learning.accuracy,
    learning.signal,
    learners.broken,
    learners.differing,
    learners.disproved,
    learners.far,
    samplers.unfetched,
    samplers.suspended,
    samplers.late,
    samplers.refused,
    parts.identities,
    parts.faults,
    parts.disk,
    parts.memberships,
    presence.clocks,
    samplers.idle,
    presence.resting,
    presence.distrust,
)

_ORDER = {"error": 0, "warning": 1, "info": 2}


def diagnose(state: SwarmState, now: float) -> tuple[Problem, ...]:
    """Everything that is wrong at `now`, worst first; problems of strangers alone come last, and are no
    alarm."""
    situation = Situation(state, now)
    if situation.silent_window:
        return tuple(presence.cut_off(situation))  # every other finding would be older than it looks
    if situation.over:
        return ()
    found = [problem for rule in RULES for problem in rule(situation)]
    found = [replace(one, level="info") if strange(state, one) else one for one in found]
    return tuple(sorted(found, key=lambda one: (strange(state, one), _ORDER[one.level]))[:LONGEST])


def follow(state: SwarmState, event: Event) -> None:
    """Fold an event; at the end of each slot of time, current problems become incidents."""
    slot = state.pulse.slot
    fold(state, event)
    if state.pulse.slot != slot >= 0:
        state.incidents.take(diagnose(state, state.last), state.last)


__all__ = ["RULES", "Situation", "diagnose", "follow"]
