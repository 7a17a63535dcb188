"""The noise of sampling: the same bits on every device, addressed by seed, completion and position."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from swarm.draws import noise

CPU = torch.device("cpu")


def of_device(key: int, first: int, blocks: int) -> list[int]:
    drawn = noise.words_on(torch.tensor([noise.signed(key)]), torch.tensor([first]), blocks)
    return [int(word) for word in drawn[0]]


def test_the_bits_are_those_of_the_authors_known_answers() -> None:
    """Random123's kat_vectors, philox4x64 of 10 rounds, counter and key 0."""
    known = (0x16554D9ECA36314C, 0xDB20FE9D672D0FDC, 0xD7E772CEE186176B, 0x7E68B68AEC7BA23B)
    drawn = of_device(0, -1, 1)  # the block with number 0
    assert tuple(low | high << 32 for low, high in zip(drawn[::2], drawn[1::2], strict=True)) == known


@given(st.integers(0, 2**64 - 1), st.integers(0, 2**50), st.integers(1, 5))
def test_every_device_makes_the_same_bits(key: int, first: int, blocks: int) -> None:
    assert noise.words(key, first, blocks).tolist() == of_device(key, first, blocks)


@pytest.mark.parametrize(
    ("vocabulary", "size", "positions"), [(19, 4, 6), (8, 2, 1), (5000, 3, 2), (40_000, 2, 2)]
)
def test_a_rows_noise_does_not_depend_on_who_else_is_drawn(
    vocabulary: int, size: int, positions: int
) -> None:
    seeds = [7, 2**64 + 3, -1]
    drawn = noise.GroupNoise(seeds, size, positions, vocabulary, CPU)
    for t in range(positions):
        rows = torch.arange(t % 2, len(seeds) * size)  # some have ended
        for row, its in zip(rows.tolist(), drawn.at(t, rows), strict=True):
            alone = noise.at_places([(seeds[row // size], row % size, t)], size, vocabulary, CPU)
            assert torch.equal(its, alone[0])


def test_seeds_completions_and_positions_have_noise_of_their_own() -> None:
    places = [(seed, g, t) for seed in (1, 2) for g in range(4) for t in range(5)]
    drawn = noise.at_places(places, 4, 64, CPU).numpy()
    assert len({row.tobytes() for row in drawn}) == len(places)
    assert len(np.unique(drawn)) > 0.99 * drawn.size


def test_it_is_gumbels_distribution() -> None:
    drawn = noise.gumbel(torch.from_numpy(noise.words(3, 0, 1 << 15))).double()
    below = {x: float((drawn <= x).double().mean()) for x in (-1.5, -0.5, 0.0, 1.0, 3.0, 8.0)}
    for x, share in below.items():
        expected = np.exp(-np.exp(-x))
        assert abs(share - expected) < 5 * np.sqrt(expected * (1 - expected) / len(drawn)) + 1e-9
    ends = noise.gumbel(torch.tensor([0, 2**32 - 1]))
    assert 22 < float(ends[0]) < 23 and float(ends[1]) == -np.inf


@pytest.mark.gpu
@pytest.mark.parametrize("vocabulary", [19, 32_000, 151_936])
def test_a_gpus_kernel_makes_the_noise_of_a_processor(vocabulary: int) -> None:
    places = [(seed, g, t) for seed in (7, -1) for g in (0, 3) for t in (0, 2**20)]
    there = noise.at_places(places, 4, vocabulary, torch.device("cuda")).cpu()
    here = noise.at_places(places, 4, vocabulary, CPU)
    assert torch.allclose(there, here, rtol=1e-5, atol=1e-5)


def test_numbers_of_a_group_are_those_of_a_stream_with_its_seed_whatever_was_drawn_before() -> None:
    for seed, shape in ((5, (8, 4)), (2**64 + 5, (2, 3)), (-1, (1, 1)), (5, (3, 7))):
        stream = np.random.Generator(np.random.Philox(key=seed % 2**64))
        assert np.array_equal(noise.uniform(seed, *shape), stream.random(shape))
