"""Two learners that nobody can dial hear each other through the seed and never meet: they are found out,
told, and do not cost each version the time of a round."""

from __future__ import annotations

from functools import cache

import msgspec
from test_roles_swarm import Told, scenario

from swarm.config import Averaging
from swarm.core.unmet import RETRY
from swarm.events import Averaged, Trained, Unreached
from swarm.sim.scenario import LineLaw

MATCH = 4.0


@cache
def behind_nat() -> Told:
    """Two learners of which nobody can dial one, with rounds that take long to find out."""
    settings = Averaging(match=MATCH, deadline=12.0, chunk=3.0)
    played = scenario(1.5, (2, 4), sample=0.5, averaging=settings)
    return Told(msgspec.structs.replace(played, lines={"learner": LineLaw(one_way=1.0)}))


def test_they_are_found_out_and_each_names_the_other() -> None:
    told = behind_nat()
    assert not told.of(Averaged)
    named = {(event.peer, event.subject) for event in told.of(Unreached)}
    assert named == {("learner-0", "learner-1"), ("learner-1", "learner-0")}


def test_a_version_does_not_wait_for_a_round_that_cannot_be() -> None:
    told = behind_nat()
    steps = told.of(Trained, since=40)
    waited = [event.version for event in steps if event.average >= MATCH]
    assert len(steps) > 15 and len(waited) <= 2 + len(steps) / RETRY, "those that try again"
    assert len({event.version for event in steps}) >= 0.9 * len(steps), "one release of a version"
