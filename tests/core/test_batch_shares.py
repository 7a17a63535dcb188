"""Shares of a batch by speed, and how long the ready ones wait for the rest."""

from __future__ import annotations

import pytest

from swarm.core.batch_shares import BAND, CLAIM, batch_shares, in_groups, worth_waiting


@pytest.mark.parametrize("speeds", [[0.0, 0.0], [2.0, 2.0 * BAND], [3.0, 0.0]])
def test_shares_are_equal_within_the_band_and_while_speeds_are_unknown(speeds: list[float]) -> None:
    assert batch_shares(speeds) == [0.5, 0.5] and in_groups(batch_shares(speeds), 7) == [4, 4]


def test_shares_follow_speeds_so_that_all_take_as_long() -> None:
    shares = batch_shares([4.0, 4.0, 2.0])
    assert shares == [0.4, 0.4, 0.2] and in_groups(shares, 20) == [8, 8, 4]


def test_an_unknown_speed_counts_as_the_usual_one() -> None:
    assert batch_shares([1.0, 4.0, 4.0, 0.0]) == [1 / 13, 4 / 13, 4 / 13, 4 / 13]


def test_a_claim_counts_as_a_few_times_the_usual_speed_at_most() -> None:
    assert batch_shares([1.0, 1.0, 1e9]) == batch_shares([1.0, 1.0, CLAIM])


def test_the_slowest_has_one_group_and_is_not_rounded_up_beyond() -> None:
    assert in_groups(batch_shares([100.0, 100.0, 1.0]), 16) == [8, 8, 1]
    assert in_groups([0.4, 0.46, 0.14], 16) == [6, 7, 2]


def test_waiting_is_worth_what_it_adds_to_the_groups_a_second() -> None:
    seconds = worth_waiting(took=9.0, ready=0.75, learning=0.25)
    assert (0.75 + 0.25) / (9.0 + seconds) == pytest.approx(0.75 / 9.0)
    assert worth_waiting(9.0, 1.0, 0.0) == 0.0 and worth_waiting(9.0, 0.1, 0.9) == 18.0
