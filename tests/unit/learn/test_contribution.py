"""Contributions: what is kept of a difference arrives, the rest stays behind, and no stranger's bytes do
harm."""

from __future__ import annotations

import struct
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from swarm.learn.learners import contribution
from swarm.learn.learners.contribution import (
    CHUNK,
    ContributionError,
    Vector,
    add,
    encode,
    largest,
    norm,
    subtract,
)

DENSITY = 1 / 64
SEVERAL = 3 * CHUNK + 100


def difference(size: int = SEVERAL, seed: int = 0) -> Vector:
    rng = np.random.default_rng(seed)
    return (rng.standard_t(3, size) * 1e-5).astype(np.float32)


def decoded(data: bytes, size: int = SEVERAL, density: float = DENSITY) -> Vector:
    total = np.zeros(size, np.float32)
    add(total, data, 1.0, density)
    return total


@settings(max_examples=60, deadline=None)
@given(
    st.integers(0, 1 << 32),
    st.sampled_from([1, 7, CHUNK - 1, CHUNK, CHUNK + 1, SEVERAL]),
    st.sampled_from([1 / 4096, 1 / 64, 0.3, 1.0]),
    st.floats(-40, 25),
)
def test_what_is_sent_and_what_stays_behind_are_the_difference_bit_by_bit(
    seed: int, size: int, density: float, magnitude: float
) -> None:
    whole = (np.random.default_rng(seed).standard_t(2, size) * 10.0**magnitude).astype(np.float32)
    rest = whole.copy()
    data = encode(whole, density)
    subtract(rest, data, density)
    assert np.array_equal(decoded(data, size, density) + rest, whole)
    assert len(data) <= largest(size, density)


def test_the_largest_values_of_each_chunk_are_kept_and_no_others() -> None:
    whole = difference()
    whole[:CHUNK] *= 1000  # a loud chunk takes nothing from the others
    kept = np.flatnonzero(decoded(encode(whole, DENSITY)))
    most = contribution.kept_per_chunk(DENSITY)
    assert most == 64
    for start in range(0, 3 * CHUNK, CHUNK):
        inside = kept[(kept >= start) & (kept < start + CHUNK)] - start
        loudest = np.argsort(-np.abs(whole[start : start + CHUNK]))[:most]
        assert set(inside) <= set(loudest)
        assert len(inside) > most // 2  # the smallest of the largest may be below half a step


def test_a_kept_value_is_within_half_a_step_of_its_own() -> None:
    whole = difference()
    sent = decoded(encode(whole, DENSITY))
    for start in range(0, SEVERAL, CHUNK):
        mine, theirs = whole[start : start + CHUNK], sent[start : start + CHUNK]
        step = np.abs(mine).max() / 127
        assert np.abs(mine - theirs)[theirs != 0].max() <= 0.5001 * step


def test_a_sixty_fourth_of_the_values_takes_a_seventieth_of_float16() -> None:
    size = 64 * CHUNK
    assert len(encode(difference(size), DENSITY)) * 65 < 2 * size


def test_what_stays_behind_is_sent_later() -> None:
    whole, total, rest = difference(), np.zeros(SEVERAL, np.float32), np.zeros(SEVERAL, np.float32)
    rest += whole
    for _ in range(200):
        data = encode(rest, DENSITY)
        subtract(rest, data, DENSITY)
        add(total, data, 1.0, DENSITY)
    assert np.linalg.norm(rest) < 1e-3 * np.linalg.norm(whole)
    assert np.allclose(total, whole, atol=1e-3 * np.abs(whole).max())


def test_segments_are_the_same_as_one_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = difference()
    together = decoded(encode(whole, DENSITY))
    monkeypatch.setattr(contribution, "SEGMENT", CHUNK)
    assert np.array_equal(decoded(encode(whole, DENSITY)), together)


def test_nothing_is_a_contribution_too() -> None:
    data = encode(np.zeros(SEVERAL, np.float32), DENSITY)
    assert norm(data, SEVERAL, DENSITY) == 0.0
    assert not decoded(data).any()


def test_a_norm_is_that_of_what_is_kept() -> None:
    data = encode(difference(), DENSITY)
    assert norm(data, SEVERAL, DENSITY) == pytest.approx(float(np.linalg.norm(decoded(data))), rel=1e-6)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 1e31])
def test_a_difference_that_is_not_finite_is_refused(bad: float) -> None:
    whole = difference()
    whole[5] = bad
    with pytest.raises(ValueError, match="values are below"):
        encode(whole, DENSITY)


# --- what a stranger can send -------------------------------------------------------------------------------


def segment(data: bytes) -> list[int]:
    return list(struct.unpack_from("<5I", data, 9))


def forged(counts: Vector, positions: list[int], scales: Vector, values: Vector, count: int = 0) -> bytes:
    streams = [
        contribution.deflate(counts.astype("<u2").data),
        contribution.deflate(contribution.encode_gaps(np.array(positions)).data),
        contribution.deflate(scales.astype("<f4").data),
        contribution.deflate(values.astype(np.int8).data),
    ]
    head = struct.pack("<BQ5I", 1, SEVERAL, count or len(positions), *map(len, streams))
    return head + b"".join(streams)


ONE = np.array([1, 0, 0, 0])
GOOD = {"counts": ONE, "positions": [9], "scales": np.ones(4), "values": np.array([3])}


def test_a_contribution_by_hand_is_read() -> None:
    assert decoded(forged(**GOOD))[9] == 3.0  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("spoiled", "why"),
    [
        ({"positions": [SEVERAL]}, "position"),
        ({"positions": [1 << 26]}, "declares"),
        ({"positions": [CHUNK]}, "counts"),
        ({"counts": np.array([2, 0, 0, 0])}, "counts"),
        ({"counts": np.array([1, 0, 0])}, "declares"),
        ({"counts": np.array([65] + [0] * 3), "positions": [*range(65)], "values": np.ones(65)}, "counts"),
        ({"count": 1 << 30}, "at most 64"),
        ({"count": 2}, "declares"),
        ({"scales": np.array([np.nan, 0, 0, 0])}, "scale"),
        ({"scales": np.array([np.inf, 0, 0, 0])}, "scale"),
        ({"scales": np.array([-1.0, 0, 0, 0])}, "scale"),
        ({"scales": np.array([1e30, 0, 0, 0])}, "scale"),
        ({"values": np.array([3, 4])}, "declares"),
    ],
)
def test_a_forged_contribution_is_refused(spoiled: dict[str, object], why: str) -> None:
    data = forged(**(GOOD | spoiled))  # type: ignore[arg-type]
    with pytest.raises(ContributionError, match=why):
        norm(data, SEVERAL, DENSITY)


def test_nothing_may_follow_the_last_values() -> None:
    with pytest.raises(ContributionError, match="1 bytes follow the last values"):
        norm(forged(**GOOD) + b"\0", SEVERAL, DENSITY)  # type: ignore[arg-type]


def test_a_contribution_to_another_model_is_refused() -> None:
    with pytest.raises(ContributionError, match="this one trains"):
        norm(encode(difference(), DENSITY), SEVERAL + 1, DENSITY)


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_damaged_bytes_are_refused_or_are_numbers(data: st.DataObject) -> None:
    good = bytearray(encode(difference(), DENSITY))
    for _ in range(data.draw(st.integers(1, 3))):
        good[data.draw(st.integers(0, len(good) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(good)))
    for spoiled in (bytes(good), bytes(good[:cut]), bytes(good) + b"\0"):
        try:
            total = decoded(spoiled)
        except ContributionError:
            continue
        assert np.isfinite(total).all()


def test_a_frame_that_declares_gigabytes_allocates_nothing() -> None:
    bomb = contribution.deflate(bytes(200 << 20))
    data = struct.pack("<BQ5I", 1, SEVERAL, 1, len(bomb), 0, 0, 0) + bomb
    tracemalloc.start()
    with pytest.raises(ContributionError, match="declares"):
        norm(data, SEVERAL, DENSITY)
    assert tracemalloc.get_traced_memory()[1] < 1 << 20
    tracemalloc.stop()
