"""The stored-nowhere shuffle."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from swarm.tasks.builtin.permutation import permuted


@given(st.integers(1, 300), st.text(max_size=8))
def test_every_position_goes_to_a_place_of_its_own(size: int, key: str) -> None:
    assert sorted(permuted(position, size, key) for position in range(size)) == list(range(size))


def test_keys_shuffle_differently_and_neighbours_part() -> None:
    orders = [[permuted(position, 1000, f"{seed}/0") for position in range(1000)] for seed in range(3)]
    assert len({tuple(order) for order in orders}) == 3
    for order in orders:
        distances = [abs(a - b) for a, b in pairwise(order)]
        # a third of the range, as of two numbers drawn at random
        assert 250 < sum(distances) / len(distances) < 420


def test_a_range_of_any_width_stays_inside() -> None:
    for size in (2, 2**31, 2**40 + 1):
        assert all(0 <= permuted(position, size, "k") < size for position in (0, 1, size // 2, size - 1))
