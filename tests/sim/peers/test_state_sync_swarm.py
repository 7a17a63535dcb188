"""A learner that comes later over a slow line is in step with the others after one whole state: they wait for
it once, and not for one whose state cannot come."""

from __future__ import annotations

from functools import cache
from itertools import pairwise
from typing import Any

import msgspec
from role_swarms import EPOCH, Told, scenario

from swarm.events import Averaged, Moved, Released, Snapped
from swarm.protocol import Phase
from swarm.settings.config import Averaging, DelayLaw, Pace, TaskSettings, Window
from swarm.sim.scenario import Fault, LineLaw, RateLaw, SimulatedLinks

CAME = 20.0


@cache
def over_slow_lines(
    learners: int = 2, mbit: float = 0.35, minutes: float = 1.0, window: float = 1800.0
) -> Told:
    """100 ms there and back; a release has 52 kB, and its state takes 8 s."""
    settings: dict[str, Any] = {
        "pace": Pace(beat=1.0, patience=5.0),
        "task": TaskSettings(name="toy", options={"buckets": 832}),
        "averaging": Averaging(),
        "window": Window(seconds=window),
    }
    late = Fault(at=CAME, fault="host", peer=f"learner-{learners - 1}")
    played = scenario(minutes, (learners, learners), late, sample=0.7, **settings)
    line = LineLaw(up=RateLaw(mbit=mbit), down=RateLaw(mbit=mbit))
    latency = DelayLaw(law="lognormal", seconds=0.05, shape=0.1, longest=5.0)
    lines = dict.fromkeys(("seed", "learner", "sampler"), line)
    return Told(msgspec.structs.replace(played, links=SimulatedLinks(latency=latency), lines=lines))


def pauses(told: Told) -> list[float]:
    """Seconds from version to version since shortly before the last learner came."""
    times = [event.at - EPOCH for event in told.of(Released, "learner", since=CAME - 5)]
    return [later - earlier for earlier, later in pairwise(times)]


def test_who_comes_later_is_in_step_with_all_after_one_state() -> None:
    for learners in (2, 3):
        told = over_slow_lines(learners)
        late = f"learner-{learners - 1}"
        rounds = {
            event.version: len(event.members) for event in told.of(Averaged, "learner-0", since=CAME + 15)
        }
        assert len(rounds) > 10 and set(rounds.values()) == {learners}
        assert len(told.of(Snapped, late)) <= 1
        assert len([event for event in told.of(Moved, late) if event.state == Phase.CATCHING_UP]) <= 3


def test_the_others_wait_once_and_go_on_as_before() -> None:
    longest, next_longest = sorted(pauses(over_slow_lines()))[:-3:-1]
    assert longest < 20 and next_longest < 6


def test_a_state_that_cannot_come_costs_the_others_one_wait() -> None:
    """14 s of a state's 20 at this rate are all that a window of 112 s gives."""
    told = over_slow_lines(mbit=0.12, minutes=2.5, window=112.0)
    waits = [pause for pause in pauses(told) if pause > 12]
    assert len(waits) == 1 and waits[0] < 25
