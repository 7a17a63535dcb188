"""What a sampler does with whatever comes of a delivery."""

from __future__ import annotations

import random
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from swarm.core.intake.deliveries import LONGEST, SHORTEST, TABLE, DeliveryLoss, NextStep, pause
from swarm.types import Verdict


def test_every_verdict_and_every_loss_is_in_the_table_and_every_move_is_used() -> None:
    assert set(TABLE) == {*Verdict, *DeliveryLoss}
    assert set(TABLE.values()) == set(NextStep)


def test_a_group_that_may_lie_at_a_learner_goes_to_no_other() -> None:
    assert {what for what, then in TABLE.items() if then is NextStep.ELSEWHERE} == {
        Verdict.OVER_QUOTA,
        DeliveryLoss.REFUSED,
    }
    assert {what for what, then in TABLE.items() if then is NextStep.AGAIN} == {
        DeliveryLoss.UNREACHABLE,
        DeliveryLoss.SILENT,
        DeliveryLoss.DAMAGED,
    }


@given(st.integers())
def test_a_pause_grows_from_the_shortest_to_the_longest_and_no_two_are_alike(seed: int) -> None:
    rng, last, pauses = random.Random(seed), 0.0, []
    for _ in range(24):
        last = pause(last, rng)
        pauses.append(last)
    assert 0.75 * SHORTEST <= pauses[0] <= 1.25 * SHORTEST
    assert all(after >= 1.5 * before or after >= 0.75 * LONGEST for before, after in pairwise(pauses))
    assert all(0.75 * LONGEST <= late <= 1.25 * LONGEST for late in pauses[13:])
    assert len(set(pauses)) == len(pauses)


@given(st.integers())
def test_a_pause_is_about_twice_the_one_before(seed: int) -> None:
    assert 1.5 <= pause(1.0, random.Random(seed)) <= 2.5
