"""A cache that grows in place holds what transformers' own does, whatever becomes of its rows."""

from __future__ import annotations

from random import Random

import pytest
import torch
from transformers import Gemma3TextConfig, LlamaConfig
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer

from swarm.sample.growing_cache import LEAST, GrowingLayer, Moves, growing_cache

HEADS, SIZE, LONGEST = 2, 3, 3 * LEAST + 9


def states(rows: int, tokens: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.rand(rows, HEADS, tokens, SIZE), torch.rand(rows, HEADS, tokens, SIZE)


@pytest.mark.parametrize("seed", range(8))
def test_it_holds_what_transformers_own_cache_holds(seed: int) -> None:
    rng, ours, theirs = Random(seed), GrowingLayer(LONGEST, Moves()), DynamicLayer()
    rows = rng.randint(1, 3)

    def added(tokens: int) -> None:
        new = states(rows, tokens)
        held = [layer.update(*(one.clone() for one in new)) for layer in (ours, theirs)]
        assert all(torch.equal(mine, other) for mine, other in zip(*held, strict=True))

    added(rng.randint(1, 9))
    ours.batch_repeat_interleave(4)
    theirs.batch_repeat_interleave(4)
    rows *= 4
    for _ in range(3 * LEAST):
        added(1)
        if rows > 1 and rng.random() < 0.2:
            rows = rng.randint(1, rows - 1)
            kept = torch.tensor(rng.sample(range(len(theirs.keys)), rows))
            ours.batch_select_indices(kept)
            theirs.batch_select_indices(kept)
            assert torch.equal(ours.keys, theirs.keys) and torch.equal(ours.values, theirs.values)
    assert ours.get_seq_length() == theirs.get_seq_length() > 3 * LEAST
    assert ours.keys.untyped_storage().nbytes() <= LONGEST * 4 * 3 * HEADS * SIZE * ours.keys.itemsize


def test_a_token_and_the_end_of_a_row_copy_no_other_token() -> None:
    layer = GrowingLayer(LONGEST, Moves())
    for _ in range(2):
        layer.update(*states(4, 1))
    first = layer.keys.data_ptr()
    for _ in range(LEAST):
        layer.update(*states(4, 1))
    assert layer.keys.data_ptr() == first
    layer.batch_select_indices(torch.tensor([0, 3]))
    assert layer.keys.data_ptr() == first and len(layer.update(*states(2, 1))[0]) == 2


def test_layers_of_other_kinds_are_transformers_own() -> None:
    plain = growing_cache(LlamaConfig(num_hidden_layers=2), 8)
    assert [type(layer) for layer in plain.layers] == [GrowingLayer] * 2
    mixed = growing_cache(
        Gemma3TextConfig(num_hidden_layers=2, layer_types=["sliding_attention", "full_attention"]), 8
    )
    assert [type(layer) for layer in mixed.layers] == [DynamicSlidingWindowLayer, GrowingLayer]
