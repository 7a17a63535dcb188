"""The mean of gradients of which some lie."""

from __future__ import annotations

import math
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarm.core.gradient_checks.clipping import Agreement, agreements, clipped

Vector = list[float]
SIZE = 400


def dot(one: Vector, other: Vector) -> float:
    return sum(a * b for a, b in zip(one, other, strict=True))


def products(vectors: list[Vector]) -> list[list[float]]:
    return [[dot(one, other) for other in vectors] for one in vectors]


def draws(count: int, signal: float = 1.0, seed: int = 1) -> tuple[Vector, list[Vector]]:
    """(the truth, gradients whose noise is as large)."""
    rng = Random(seed)
    truth = [rng.gauss(0, signal) for _ in range(SIZE)]
    return truth, [[value + rng.gauss(0, 1) for value in truth] for _ in range(count)]


def cosine(one: Vector, other: Vector) -> float:
    return dot(one, other) / math.sqrt(dot(one, one) * dot(other, other))


def total(vectors: list[Vector], weights: list[float] | None = None) -> Vector:
    found = clipped(products(vectors), weights or [1.0] * len(vectors))
    return [sum(f * v[k] for f, v in zip(found.factors, vectors, strict=True)) for k in range(SIZE)]


@pytest.mark.parametrize("members", [2, 3, 4, 8, 16])
@pytest.mark.parametrize("signal", [0.3, 1.0])
def test_honest_members_make_their_weighted_mean(members: int, signal: float) -> None:
    for seed in range(5):
        _, vectors = draws(members, signal, seed)
        weights = [1.0 + k for k in range(members)]
        found = clipped(products(vectors), weights)
        assert found.is_mean and found.factors == [weight / sum(weights) for weight in weights]


@pytest.mark.parametrize("members", [3, 4, 8])
@pytest.mark.parametrize("times", [-4.9, -2.0, -10.0, 30.0, -1000.0])
def test_one_that_lies_turns_no_mean_and_is_cut(members: int, times: float) -> None:
    truth, vectors = draws(members)
    vectors[0] = [times * value for value in vectors[0]]
    found = clipped(products(vectors), [1.0] * members)
    assert found.kept[0] < 0.6 and min(found.kept[1:]) > 0.8
    assert cosine(truth, total(vectors)) > {3: 0.6, 4: 0.7, 8: 0.85}[members]


def test_learners_that_have_nothing_to_say_cut_nobody() -> None:
    _, (one, two) = draws(2)
    nothing = [0.0] * SIZE
    found = clipped(products([nothing, one, nothing, two, nothing]), [1.0] * 5)
    assert found.is_mean and found.factors == [0.2] * 5


def test_whoever_says_nothing_weighs_as_before_where_others_are_cut() -> None:
    _, vectors = draws(4)
    vectors[0] = [-10 * value for value in vectors[0]]
    alone, nothing = total(vectors), [0.0] * SIZE
    assert total([*vectors, nothing]) == pytest.approx([0.8 * value for value in alone], rel=1e-6, abs=1e-6)


@given(
    st.lists(st.lists(st.floats(-1e3, 1e3), min_size=3, max_size=3), min_size=1, max_size=7),
    st.lists(st.floats(0.1, 100), min_size=7, max_size=7),
)
def test_the_factors_never_add_up_to_more_than_one(vectors: list[Vector], weights: list[float]) -> None:
    found = clipped(products(vectors), weights[: len(vectors)])
    assert all(factor >= 0 for factor in found.factors) and sum(found.factors) <= 1 + 1e-6
    assert all(0 <= kept <= 1 for kept in found.kept)


def test_small_gradients_have_the_cosine_of_large_ones() -> None:
    assert Agreement(0.01, 0.1, 0.1).cosine == pytest.approx(0.1)
    assert Agreement(0.0, 0.0, 0.1).cosine == 0.0


def test_the_radius_is_of_the_median_distance_to_the_others() -> None:
    at = [10.0, 10.9, 12.3, 100.0]
    found = clipped([[a * b for b in at] for a in at], [1.0] * 4)
    mean = sum(factor * value for factor, value in zip(found.factors, at, strict=True))
    assert found.kept[3] * (100.0 - mean) == pytest.approx(1.4 / math.sqrt(2), rel=1e-3)


def test_members_that_are_all_out_make_the_mean_of_all() -> None:
    assert clipped([[1.0, 1.0], [1.0, 1.0]], [1.0, 3.0], out={0, 1}).factors == [0.25, 0.75]


def test_a_member_agrees_with_the_mean_of_the_others_without_itself() -> None:
    vectors = [[3.0, 0.0], [0.0, 3.0], [0.0, 6.0]]
    assert [one.mean for one in agreements(products(vectors), [1 / 3] * 3)] == [
        pytest.approx((0.0, 9.0, 9.0)),
        pytest.approx((6.0, 9.0, 5.0)),
        pytest.approx((6.0, 36.0, 2.0)),
    ]
