"""Learners of different speed: each has the share of the batch that it can take in by the round."""

from __future__ import annotations

from collections import Counter
from functools import cache

import msgspec
import pytest
from test_roles_swarm import Told, scenario, seconds

from benchmarks.rows import unequal as row
from swarm.config import BatchSize
from swarm.events import Averaged, Trained
from swarm.sim.scenario import Scenario


def unequal(learners: int, slower: float, minutes: float = 1.5) -> Scenario:
    """Groups enough, each of which takes 0.5 s to learn on; the last learner takes longer."""
    plain = scenario(minutes, (learners, 12), batch=BatchSize(groups=12, close_after=3.0))
    last = {f"learner-{learners - 1}": slower}
    return msgspec.structs.replace(
        plain, prices=plain.prices | {"learn": seconds(0.5)}, each=("learn",), slower=last
    )


@cache
def slow_third() -> Told:
    return Told(unequal(3, 2.5))


def test_a_slow_learner_is_in_the_rounds_with_a_smaller_share() -> None:
    told = slow_third()
    rounds = [len(event.members) for event in told.of(Averaged, "learner-0", since=30)]
    assert len(rounds) > 12 and Counter(rounds)[3] >= 0.9 * len(rounds)
    groups = {
        peer: sum(event.groups for event in told.of(Trained, peer, since=30))
        for peer in ("learner-0", "learner-1", "learner-2")
    }
    assert 2 * groups["learner-2"] < groups["learner-1"] <= 1.2 * groups["learner-0"]


def test_a_slow_learner_is_better_than_none() -> None:
    def groups(told: Told) -> int:
        return sum(event.groups for event in told.of(Trained, since=30))

    assert groups(slow_third()) > 1.05 * groups(Told(unequal(2, 1.0)))


@pytest.mark.slow
def test_the_row_says_what_a_slower_learner_adds() -> None:
    (figure,) = row.measure(lambda _: None, slower=(2.0,), minutes=4.0)
    assert figure.other is not None and figure.value > figure.other
