"""What a member of a round counts for: its weight and the share of its gradient."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarm.core.gradient_checks.norm_screening import (
    FAR,
    ROUNDS,
    SLACK,
    Allowance,
    AnnouncedNorm,
    ScreenedWeight,
    Usual,
    largest_mean_norm,
    once,
    screened_weights,
)

CLAIMS = st.lists(
    st.builds(AnnouncedNorm, st.floats(0.1, 100), st.floats(0, 1e6), st.floats(0, 1e3)),
    min_size=2,
    max_size=9,
)


def shares(norms: list[float], usual: float = 0.0) -> list[float]:
    return [one.share for one in screened_weights([AnnouncedNorm(1.0, norm, usual) for norm in norms], 8)]


def test_of_gradients_of_one_group_the_first_has_weight_and_one_without_weight_takes_none_from_others() -> (
    None
):
    marks = [b"group..1", b"group..1group..2", b"group..2", b""]
    told = [AnnouncedNorm(weight, 1.0, 1.0) for weight in (1.0, 2.0, 3.0, 4.0)]
    assert [claim.weight for claim in once(told, marks)] == [1.0, 0.0, 3.0, 4.0]
    told[0] = told[0]._replace(weight=0.0)
    assert [claim.weight for claim in once(told, marks)] == [0.0, 2.0, 0.0, 4.0]
    assert [claim.weight for claim in once(told, marks, out=[1])] == [0.0, 0.0, 3.0, 4.0]
    judged = screened_weights(once(told, marks), 8)
    assert [one.weight for one in judged] == [0.0, 2.0, 0.0, 4.0]


@pytest.mark.parametrize("members", [2, 3, 4, 8])
def test_one_far_gradient_is_scaled_down_to_the_median_and_the_others_count_whole(members: int) -> None:
    honest = [1.0 + 0.1 * k for k in range(members - 1)]
    middle = honest[(members - 1) // 2]
    for times, left in ((FAR, FAR), (1.001 * FAR, 1.0), (10 * FAR, 0.1), (1000 * FAR, 0.001)):
        *whole, scaled = shares([*honest, times * middle])
        assert whole == [1.0] * (members - 1)
        assert scaled * times == pytest.approx(left, rel=0.01)


def test_a_round_that_is_larger_as_a_whole_has_nobody_far() -> None:
    assert shares([30.0, 40.0, 50.0], usual=1.0) == [1.0] * 3


def test_learners_whose_groups_teach_nothing_make_nobody_far() -> None:
    assert shares([0.0, 0.0, 0.0, 1.0]) == [1.0] * 4
    assert shares([0.001, 0.001, 1.0], usual=0.8) == [1.0] * 3
    assert shares([0.0, 0.0, 0.0, 1.0, 1000.0]) == pytest.approx([1.0] * 4 + [FAR / 1000**2])


def test_a_gradient_that_is_alone_in_its_round_is_judged_by_the_rounds_before() -> None:
    assert shares([0.0, 0.0, 0.0, 1000.0], usual=0.5)[3] == pytest.approx(FAR * (0.5 / 1000) ** 2)


def test_a_learner_without_rounds_before_says_nothing_of_what_is_usual() -> None:
    new, old = AnnouncedNorm(1.0, 0.0, 0.0), AnnouncedNorm(1.0, 1000.0, 0.5)
    assert screened_weights([new, new, old], 8)[2].share == pytest.approx(FAR * (0.5 / 1000) ** 2)


def test_a_usual_norm_of_a_minority_moves_nothing() -> None:
    honest = [AnnouncedNorm(1.0, 1.0, 1.0)] * 2
    for lie in (1e-9, 1e9):
        judged = screened_weights([*honest, AnnouncedNorm(1.0, 1000.0, lie)], 8)
        assert [one.share for one in judged] == pytest.approx([1.0, 1.0, FAR / 1000**2])
    assert screened_weights([AnnouncedNorm(1.0, 1.0, 1.0), AnnouncedNorm(1.0, 1000.0, 1e9)], 8)[
        1
    ].share == pytest.approx(FAR / 1000**2)


def test_a_weight_is_at_most_the_share_of_the_batch_or_what_the_others_left_of_it() -> None:
    def weights(*told: float, groups: int = 8) -> list[float]:
        return [
            one.weight
            for one in screened_weights([AnnouncedNorm(weight, 1.0, 1.0) for weight in told], groups)
        ]

    assert weights(5, 3) == [5, 3]
    assert weights(2.5, 3.5) == [2.5, 3.5]
    assert weights(2, 2, 2, 1e6) == [2, 2, 2, 2]
    assert weights(1e6, 1e6, groups=9) == [5, 5]


@given(CLAIMS, st.integers(1, 64))
def test_no_share_is_above_one_and_what_is_scaled_lands_at_most_at_the_reference(
    claims: list[AnnouncedNorm], groups: int
) -> None:
    for claim, one in zip(claims, screened_weights(claims, groups), strict=True):
        assert 0 <= one.share <= 1 and 0 < one.weight <= claim.weight
        assert one.share == 1 or one.share < 1 / FAR + 1e-9
    both = [ScreenedWeight(1.0, 1.0), ScreenedWeight(3.0, 0.5)]
    assert (
        largest_mean_norm([AnnouncedNorm(1.0, 2.0, 0.0), AnnouncedNorm(3.0, 4.0, 0.0)], both)
        == SLACK * (1 * 2 + 3 * 0.5 * 4) / 4
    )


def test_usual_is_the_median_of_the_last_rounds_without_zeros() -> None:
    usual = Usual()
    assert usual.norm() == 0
    usual.add([100.0, 100.0])
    for _ in range(ROUNDS):
        usual.add([0.0, 1.0, 2.0, 1000.0])
    assert usual.norm() == 2.0


def test_of_two_a_liar_of_many_rounds_does_not_become_usual() -> None:
    usual = Usual()
    for k in range(3 * ROUNDS):
        usual.add([1.0 + 0.01 * k, 1000.0])
    assert usual.norm() < 2.0


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=20), st.floats(0, 1e3))
def test_parts_never_make_more_than_was_announced(norms: list[float], announced: float) -> None:
    allowance = Allowance(announced)
    made = math.hypot(*(allowance.take(norm) * norm for norm in norms))
    assert made <= SLACK * announced * (1 + 1e-9) or made < 1e-9
    honest = math.hypot(*norms) <= announced
    assert allowance.least == 1 or not honest


@pytest.mark.parametrize("norm", [10.2, 20.0, 50.0, 1e6])
def test_a_part_that_is_too_large_has_the_largest_power_of_two_that_fits_and_uses_up_the_rest(
    norm: float,
) -> None:
    allowance = Allowance(10.0)
    share = allowance.take(norm)
    assert math.log2(share).is_integer() and share * norm <= SLACK * 10.0 < 2 * share * norm
    assert allowance.take(0.1) == 0.0 == allowance.least


def test_a_part_that_dwarfs_its_announcement_has_no_share_and_is_no_error() -> None:
    allowance = Allowance(1e-160)
    assert allowance.take(1e10) == 0.0 and allowance.least == 0.0
