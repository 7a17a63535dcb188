"""Learners that learn ahead compute all the time: nothing that is sampled is lost by it."""

from __future__ import annotations

import pytest

from lab.rows.simulated import busy


def test_four_learners_that_learn_ahead_compute_all_the_time_and_train_all_that_is_sampled() -> None:
    found = busy.played(overlap=True, churn=False, minutes=5.0)
    assert found.busy >= 97 and found.kept >= 99


@pytest.mark.parametrize("seed", [1, 2])
def test_with_a_kill_each_minute_they_wait_for_a_fiftieth_of_their_time_at_most(seed: int) -> None:
    found = busy.played(overlap=True, churn=True, minutes=10.0, seed=seed)
    assert found.busy >= 98 and found.kept >= 99
