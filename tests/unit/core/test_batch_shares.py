"""Shares of a batch by speed, and how long the ready ones wait for the rest."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarm.core.agreement.batch_shares import BAND, CLAIM, batch_shares, fewer, in_groups, worth_waiting


@pytest.mark.parametrize("speeds", [[0.0, 0.0], [2.0, 2.0 * BAND], [3.0, 0.0]])
def test_shares_are_equal_within_the_band_and_while_speeds_are_unknown(speeds: list[float]) -> None:
    assert batch_shares(speeds) == [0.5, 0.5] and in_groups((0.5, 0.5), 7) == [4, 4]


def test_shares_follow_speeds_so_that_all_take_as_long() -> None:
    shares = batch_shares([4.0, 4.0, 2.0])
    assert shares == [0.4, 0.4, 0.2] and in_groups((0.4, 0.4, 0.2), 20) == [8, 8, 4]


def test_an_unknown_speed_counts_as_the_usual_one() -> None:
    assert batch_shares([1.0, 4.0, 4.0, 0.0]) == [1 / 13, 4 / 13, 4 / 13, 4 / 13]


def test_a_claim_counts_as_a_few_times_the_usual_speed_at_most() -> None:
    assert batch_shares([1.0, 1.0, 1e9]) == batch_shares([1.0, 1.0, CLAIM])


def test_whom_the_others_wait_for_takes_as_many_groups_fewer_as_it_computes_meanwhile() -> None:
    assert fewer([5.0, 4.2, 6.0], speed=0.5, share=8) == 2
    assert fewer([5.0], speed=0.5, share=8) == 2 and fewer([1.9], speed=0.5, share=8) == 0


def test_a_batch_is_half_of_its_share_at_least_and_one_alone_of_several_makes_none_smaller() -> None:
    assert fewer([1e9], speed=0.5, share=8) == 4 and fewer([1e9], speed=0.5, share=1) == 0
    assert fewer([1e9, 0.0, 0.0], speed=0.5, share=8) == 0 == fewer([1e9, 0.0], speed=0.5, share=8)
    assert fewer([], speed=0.5, share=8) == 0 == fewer([5.0], speed=0.0, share=8)


@pytest.mark.parametrize(
    ("slower", "groups"),
    [(1.5, [5, 5, 5, 3]), (2, [5, 5, 5, 2]), (3, [5, 5, 5, 1]), (5, [5, 5, 5, 1]), (8, [6, 6, 6, 0])],
)
def test_nobody_waits_for_a_group_that_others_would_have_computed_by_then(
    slower: float, groups: list[int]
) -> None:
    """By nearest numbers one that is three times slower had two of 16, and the others a fifth of their time
    nothing to do, or a round without it."""
    assert in_groups(tuple(batch_shares([1.0, 1.0, 1.0, 1 / slower])), 16) == groups


@given(st.lists(st.floats(1e-2, 1e2), min_size=1, max_size=6), st.integers(1, 40))
def test_they_end_at_the_first_time_at_which_they_have_the_batch(speeds: list[float], groups: int) -> None:
    shares = tuple(batch_shares(speeds))
    ends = sorted({count / share for share in shares for count in range(1, groups + 1)})
    at_each = ((end, [math.floor(share * end + 1e-9) for share in shares]) for end in ends)
    end, counts = next((end, counts) for end, counts in at_each if sum(counts) >= groups)
    for count, less, share in zip(in_groups(shares, groups), counts, shares, strict=True):
        assert count == less or (
            count == less + 1 and count <= share * end + min(0.05 * share * end, 0.2) + 1e-6
        )


def test_members_whose_speeds_differ_by_what_measurements_vary_have_the_same_number() -> None:
    shares = tuple(batch_shares([1.02, 1.0, 0.98, 0.66]))
    assert in_groups(shares, 16) == [5, 5, 5, 3]


def test_waiting_is_worth_what_it_adds_to_the_groups_a_second() -> None:
    seconds = worth_waiting(took=9.0, ready=0.75, learning=0.25)
    assert (0.75 + 0.25) / (9.0 + seconds) == pytest.approx(0.75 / 9.0)
    assert worth_waiting(9.0, 1.0, 0.0) == 0.0 and worth_waiting(9.0, 0.1, 0.9) == 18.0
