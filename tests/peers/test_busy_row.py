"""Learners that learn ahead compute all the time: nothing that is sampled is lost by it."""

from __future__ import annotations

import pytest

from benchmarks.rows import busy


@pytest.mark.slow
def test_four_learners_that_learn_ahead_compute_all_the_time_and_train_all_that_is_sampled() -> None:
    found = busy.played(overlap=True, churn=False, minutes=5.0)
    assert found.busy >= 97 and found.kept >= 99


@pytest.mark.slow
def test_with_a_kill_each_minute_they_wait_for_a_thirtieth_of_their_time_at_most() -> None:
    found = busy.played(overlap=True, churn=True, minutes=10.0, seed=2)
    assert found.busy >= 96.7 and found.kept >= 99


def test_a_trace_kills_a_peer_each_minute_which_comes_back_after_half_of_it() -> None:
    script = busy.trace(5.0)
    assert [fault.at for fault in script] == [60, 120, 180] and {fault.down for fault in script} == {30}
    assert [fault.peer.split("-")[0] for fault in script] == ["learner", "sampler", "learner"]
