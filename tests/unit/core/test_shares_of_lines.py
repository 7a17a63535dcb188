"""What each member of a round reduces, by its line."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarm.core.agreement.shares import (
    CLAIM,
    LARGE_PART,
    LARGEST_PART,
    LEAST_PART,
    MANY,
    MOST,
    SEVERAL,
    SHORTEST,
    SMALLEST_PART,
    USUAL_PART,
    AnnouncedLine,
    announced,
    believed,
    deadline,
    largest_part,
    part_bytes,
    patience,
    seconds,
    shares,
)

MBIT = 125_000

uplinks = st.builds(
    AnnouncedLine,
    st.integers(0, 2 * MOST),
    st.booleans(),
    st.sampled_from([USUAL_PART, LARGE_PART, LARGEST_PART]),
)

groups = st.lists(uplinks, min_size=2, max_size=12).filter(
    lambda lines: not all(line.dial_only for line in lines)
)


def lines_of(*mbit: float) -> list[AnnouncedLine]:
    return [AnnouncedLine(int(rate * MBIT)) for rate in mbit]


def weights(lines: list[AnnouncedLine]) -> list[float]:
    parts = shares(lines)
    return [part / sum(parts) for part in parts]


@given(st.lists(st.integers(0, 4 * MOST), min_size=2, max_size=8))
def test_what_rounds_carried_that_filled_no_line_divides_alike(carried: list[int]) -> None:
    parts = shares([AnnouncedLine(announced(0, rate)) for rate in carried])
    assert len({*parts}) == 1


def test_a_line_that_was_filled_counts_as_what_it_carried_then() -> None:
    assert announced(MBIT, 100 * MBIT) == announced(MBIT, 0) == MBIT
    assert announced(0, MOST) == MOST and announced(0, MOST - 1) == 0


def lasting(lines: list[AnnouncedLine], weights: list[float]) -> float:
    """Seconds of a round over one byte."""
    return max(
        (1 + (len(lines) - 2) * weight) / rate for weight, rate in zip(weights, believed(lines), strict=True)
    )


@given(groups)
def test_every_value_has_a_reducer_and_none_cannot_be_dialled(lines: list[AnnouncedLine]) -> None:
    parts = shares(lines)
    assert sum(parts) > 0 and min(parts) >= 0
    assert sum(parts) < 2**53, "float64 does not hold the sums"
    assert all(part == 0 for part, line in zip(parts, lines, strict=True) if line.dial_only)


@given(groups)
def test_a_round_never_takes_longer_than_with_equal_shares(lines: list[AnnouncedLine]) -> None:
    many = sum(not line.dial_only for line in lines)
    equal = [0.0 if line.dial_only else 1 / many for line in lines]
    assert lasting(lines, weights(lines)) <= lasting(lines, equal) * (1 + 1e-9)


@given(groups, st.integers(0, 2**32))
def test_no_other_shares_are_faster(lines: list[AnnouncedLine], seed: int) -> None:
    drawn = random.Random(seed)
    raw = [0.0 if line.dial_only else drawn.expovariate(1) + 1e-9 for line in lines]
    other = [one / sum(raw) for one in raw]
    assert lasting(lines, weights(lines)) <= lasting(lines, other) * (1 + 1e-9)


@given(groups, st.randoms())
def test_the_order_of_members_does_not_matter(lines: list[AnnouncedLine], drawn: random.Random) -> None:
    order = drawn.sample(range(len(lines)), len(lines))
    parts = shares(lines)
    assert shares([lines[k] for k in order]) == [parts[k] for k in order]


@given(groups)
def test_equal_lines_have_equal_shares(lines: list[AnnouncedLine]) -> None:
    of = dict(zip(lines, shares(lines), strict=True))
    assert shares(lines) == [of[line] for line in lines]


def test_two_members_have_halves_whatever_their_lines() -> None:
    assert weights(lines_of(5, 100)) == [0.5, 0.5]
    assert weights([AnnouncedLine(MBIT, dial_only=True), AnnouncedLine(MBIT)]) == [0, 1]


def test_a_line_that_is_slow_enough_reduces_nothing() -> None:
    assert weights(lines_of(5, 20, 20, 20)) == [0, *[pytest.approx(1 / 3)] * 3]
    assert 0 < weights(lines_of(18, 20, 20, 20))[0] < 0.25
    assert seconds(lines_of(5, 20, 20, 20), 5 * MBIT) == pytest.approx(1.0)
    assert seconds(lines_of(20, 20, 20), 15 * MBIT) == pytest.approx(1.0), "a third of it thrice, and a third"


def test_a_faster_line_reduces_more_and_all_end_at_the_same_time() -> None:
    lines = lines_of(30, 35, 40)
    parts = weights(lines)
    assert parts == sorted(parts) and parts[0] > 0
    ends = [(1 + part) / line.rate for part, line in zip(parts, lines, strict=True)]
    assert ends == pytest.approx([ends[0]] * 3)


def test_one_that_knows_nothing_of_its_line_counts_as_faster_than_those_that_do() -> None:
    assert believed([*lines_of(5, 20, 30), AnnouncedLine()])[-1] == 60 * MBIT
    assert believed([*lines_of(5, 5, 10_000), AnnouncedLine()])[-1] == CLAIM * 5 * MBIT
    assert len(set(weights([AnnouncedLine()] * 4))) == 1


@given(st.integers(2, 16))
def test_one_slow_line_that_knows_itself_is_enough_to_spare_it(others: int) -> None:
    assert weights([*lines_of(5), *[AnnouncedLine()] * others])[0] == 0 or others == 1


def test_a_claim_beyond_four_times_the_median_is_cut_to_it() -> None:
    assert believed(lines_of(5, 5, 5, 10_000))[-1] == CLAIM * 5 * MBIT
    assert believed(lines_of(10_000, 10_000)) == [MOST, MOST]


def test_a_claim_of_next_to_nothing_does_not_make_a_round_endless() -> None:
    assert deadline([AnnouncedLine(1), *lines_of(20, 20)], 1e6) < 1000


def test_a_round_may_take_twice_what_its_lines_ask_for_and_never_less_than_its_least() -> None:
    assert deadline(lines_of(20, 20), 2 * 596e6) == pytest.approx(2 * 476.8)
    assert deadline(lines_of(20, 20), 1000) == SHORTEST


@given(groups, st.floats(1.0, 1e9), st.floats(0.1, 60.0))
def test_a_slow_line_that_moves_shows_progress_before_others_lose_patience(
    lines: list[AnnouncedLine], size: float, chunk: float
) -> None:
    part, slowest = part_bytes(lines, size), min(believed(lines))
    least = SMALLEST_PART if size >= SMALLEST_PART * len(lines) else LEAST_PART
    assert least <= part <= LARGEST_PART and part & (part - 1) == 0
    assert 2 * (len(lines) - 1) * part / slowest < patience(lines, part, chunk)


def test_parts_are_as_large_as_ever_on_fast_lines_and_small_on_slow_ones() -> None:
    assert part_bytes(lines_of(100, 100), 1e9) == USUAL_PART
    assert part_bytes(lines_of(5, 20, 20, 20), 1e9) == 1 << 16


def test_each_member_reduces_a_part_of_a_small_model_too() -> None:
    assert part_bytes(lines_of(100, 100, 100, 100), 208_000) == 1 << 15
    assert part_bytes(lines_of(100, 100, 100, 100), 20_000) == 1 << 12
    assert part_bytes(lines_of(100, 100, 100, 100), 100) == LEAST_PART


def test_parts_are_the_largest_where_all_members_take_them_and_each_reduces_several() -> None:
    new, slow = AnnouncedLine(12_500_000, part=LARGEST_PART), AnnouncedLine(125_000, part=LARGEST_PART)
    assert part_bytes([new, new], 1e9) == part_bytes([new, new._replace(part=1 << 30)], 1e9) == LARGEST_PART
    for less in (LARGE_PART, LARGEST_PART - 1):
        assert part_bytes([new, new, new._replace(part=less)], 1e9) == LARGE_PART
    for older in (USUAL_PART, LARGE_PART - 1, 0, -1):
        assert part_bytes([new, new, new._replace(part=older)], 1e9) == USUAL_PART
    assert part_bytes([new, new], SEVERAL * 2 * LARGEST_PART) == LARGEST_PART
    assert part_bytes([new, new, new], SEVERAL * 2 * LARGEST_PART) == LARGE_PART
    assert part_bytes([new, new, new], SEVERAL * 2 * LARGE_PART) == USUAL_PART
    assert part_bytes([new, slow], 1e9) == 1 << 15


def test_a_member_takes_the_largest_parts_where_its_line_is_fast_and_its_cores_are_many() -> None:
    assert largest_part(True, MANY) == LARGEST_PART > largest_part(True, MANY - 1) == LARGE_PART
    assert largest_part(False, MANY) == USUAL_PART
