"""The cache of keys and values of the engine `hf`, whose layers grow in place.

    transformers' own layer    a copy of all tokens for each new one, and of all rows when one has ended
    a GrowingLayer             writes the new token behind the others, and a live row over one that has ended

A layer's tensors are the first rows and tokens of larger ones. These are made anew, for the remaining rows,
when they are full: an eighth longer, so that a token is copied some eight times, and never longer than a row
may be. Layers of other kinds (a sliding window, linear attention) are transformers' own. Of these, only
`reorder_cache` moves a layer's whole state: its other ways to choose rows leave out everything beside keys
and values.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache, PretrainedConfig
from transformers.cache_utils import CacheLayerMixin, DynamicLayer, LinearAttentionLayer

LEAST = 32
"""Tokens that a layer grows by at least."""


def growing_cache(config: PretrainedConfig, longest: int) -> DynamicCache:
    """An empty cache for a model of this config, and rows of at most `longest` tokens."""
    cache, moves = DynamicCache(config=config), Moves()
    cache.layers = [
        GrowingLayer(longest, moves) if type(layer) is DynamicLayer else layer for layer in cache.layers
    ]
    return cache


def keep_rows(cache: DynamicCache, indices: Tensor) -> None:
    """Row i is what row indices[i] was; there are no more rows than before."""
    for layer in cache.layers:
        keep = layer.batch_select_indices if isinstance(layer, GrowingLayer) else layer.reorder_cache
        keep(indices)


def holds(cache: DynamicCache, rows: int) -> bool:
    """Whether a model has put its input of so many rows into the cache: states into all layers for them, keys
    and values into one layer at least. Others may be for pictures, or read those of a layer below; where
    there are states alone, transformers 5.24 spoils Mamba's when a mask is given."""
    full = [(layer, _has(layer, rows)) for layer in cache.layers]
    states = all(has for layer, has in full if isinstance(layer, LinearAttentionLayer))
    return states and any(has for layer, has in full if isinstance(layer, CacheLayerMixin))


def _has(layer: object, rows: int) -> bool:
    """Whether a layer has a tensor with so many rows."""
    held = [[*kept.values()] if isinstance(kept, dict) else [kept] for kept in vars(layer).values()]
    return any(
        isinstance(one, Tensor) and one.dim() > 1 and len(one) == rows for kept in held for one in kept
    )


def keeps_states(cache: DynamicCache) -> bool:
    """Whether layers keep states of their input: of a convolution, of linear attention, of a state space."""
    return any(isinstance(layer, LinearAttentionLayer) for layer in cache.layers)


def bears_padding(cache: DynamicCache) -> bool:
    """Whether each row is as it is alone, also where others are longer. Layers that a model brings along
    itself need not do that: those of DeepSeek V4 put padding together with tokens."""
    known = (GrowingLayer.__module__, DynamicLayer.__module__)
    return all(type(layer).__module__ in known for layer in cache.layers)


def sees_all(cache: DynamicCache) -> bool:
    """Whether each layer's tokens see all tokens before them that the mask allows, wherever padding stands: a
    window counts padding, too."""
    return all(isinstance(layer, GrowingLayer) for layer in cache.layers)


class Moves:
    """Which rows others take the places of, once for all layers: a GPU is waited for."""

    def __init__(self) -> None:
        self._last: tuple[Tensor, Tensor] | None = None

    def among(self, indices: Tensor) -> Tensor:
        """The i where indices[i] is not i."""
        if self._last is None or self._last[0] is not indices:
            stay = torch.arange(len(indices), device=indices.device)
            self._last = indices, (indices != stay).nonzero()[:, 0]
        return self._last[1]


class GrowingLayer(DynamicLayer):
    """Keys and values are (N, heads, tokens, d)."""

    keys: Tensor
    values: Tensor

    def __init__(self, longest: int, moves: Moves) -> None:
        super().__init__()
        self._moves, self._more_keys, self._more_values = (
            moves,
            GrowingTensor(longest),
            GrowingTensor(longest),
        )

    def update(self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        self.keys = self._more_keys.extended(self.keys, key_states)
        self.values = self._more_values.extended(self.values, value_states)
        return self.keys, self.values

    def batch_select_indices(self, indices: Tensor) -> None:
        """Row i is what row indices[i] was. Rows that stay where they are cost nothing."""
        if self.get_seq_length():
            moved = self._moves.among(indices)
            for held in (self.keys, self.values):
                held[moved] = held[indices[moved]]
            self.keys, self.values = self.keys[: len(indices)], self.values[: len(indices)]


class GrowingTensor:
    """A tensor whose beginning is a layer's."""

    def __init__(self, longest: int) -> None:
        self._longest = longest
        self._whole: Tensor | None = None

    def extended(self, held: Tensor, new: Tensor) -> Tensor:
        """`held` with `new` behind it."""
        if not held.numel():
            return new
        rows, length, end = len(held), held.shape[-2], held.shape[-2] + new.shape[-2]
        whole = self._whole
        # Other memory means other code made it, as with a cache whose rows are repeated.
        if whole is None or whole.data_ptr() != held.data_ptr() or whole.shape[-2] < end:
            size = min(end + max(LEAST, end // 8), self._longest)
            whole = held.new_empty(*held.shape[:-2], size, held.shape[-1])
            whole[:, :, :length] = held
            self._whole = whole
        whole[:rows, :, length:end] = new
        return whole[:rows, :, :end]
