"""Who may report which event: curves, counts and the line of versions are what members say.

Not handled here: whether a member says the truth.
"""

from __future__ import annotations

from collections.abc import Mapping

from swarm import events
from swarm.protocol import Role

REPORTERS: Mapping[type[events.Event], tuple[Role, ...]] = {
    events.Counted: (Role.LEARNER,),
    events.Shown: (Role.LEARNER,),
    events.Moved: (Role.LEARNER,),
    events.Averaged: (Role.LEARNER,),
    events.RoundBroke: (Role.LEARNER,),
    events.Unreached: (Role.LEARNER,),
    events.Trained: (Role.LEARNER,),
    events.Snapped: (Role.LEARNER,),
    events.CaughtUp: (Role.LEARNER,),
    events.Forked: (Role.LEARNER,),
    events.Audited: (Role.LEARNER, Role.AUDITOR, Role.EVALUATOR, Role.SAMPLER),
    events.Evaluated: (Role.EVALUATOR,),
}
"""Event -> the roles whose members alone may report it; anybody may report any other one of itself."""


def reporters(event: events.Event) -> tuple[Role, ...]:
    """The roles of which the sender of an event has to be a member; none: anybody may. Learners alone suspend
    samplers."""
    if isinstance(event, events.Audited) and event.until > 0:
        return (Role.LEARNER,)
    return REPORTERS.get(type(event), ())
