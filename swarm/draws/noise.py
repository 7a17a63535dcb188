"""The random numbers of sampling: Gumbel noise that any peer can recompute from a group's seed.

    (seed, position t, completion g) --Philox4x64-10--> a word of 32 bits for each token of the vocabulary
                                     --gumbel--> (V,) float32

A token is sampled as the argmax over v of log p(v) + noise(v), which draws v with probability p(v) (Gumbel
1954; Maddison, Tarlow and Minka 2014, arXiv 1411.0030, section 2). With the text and the policy one forward
pass shows whether each token was that argmax.

Philox is counter-based (Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3"): block b of
completion g at position t is number (t * G + g) * B + b + 1 of the stream with the group's seed as its key,
where G is the group's size and B = ceil(V / 8), so each row begins with a block of its own. The bits are
those of numpy's Philox on every device; logarithms may differ in their last bits.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import threading
from collections.abc import Sequence
from functools import cache, partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

WORDS = 8
"""Of 32 bits in one block of Philox4x64."""

AT_ONCE = 1 << 15
"""Words that are made in one call on a CPU: a call costs as much as 2,000 words, and these stay in a core's
cache."""

ROUNDS = 10
MULTIPLIERS = (0xD2E7470EE14C6C93, 0xCA5A826395121157)
INCREMENTS = (0x9E3779B97F4A7C15, 0xBB67AE8584CAA73B)
"""Of the key after each round (Salmon et al. 2011, section 4.3)."""

LOW = 0xFFFFFFFF


class GroupNoise:
    """The noise of several groups of one size, of `positions` in ascending order. Rows are completions,
    `size` of each group in the order of the seeds, which are taken modulo 2^64."""

    def __init__(
        self, seeds: Sequence[int], size: int, positions: int, vocabulary: int, device: torch.device
    ) -> None:
        self._seeds = [seed % (1 << 64) for seed in seeds]
        self._size, self._vocabulary, self._device = size, vocabulary, device
        self._blocks = blocks_of(vocabulary)
        self._keys = torch.tensor([signed(seed) for seed in self._seeds], device=device)
        self._positions = min(positions, AT_ONCE // (self._blocks * WORDS * size))
        """Positions of a whole group in one call on a CPU; 0: each row has a call of its own."""
        self._made = torch.empty(0, 0, 0)
        self._first = 0

    def at(self, position: int, rows: Tensor) -> Tensor:
        """(N, V) float32 for the rows (N,) int64."""
        if self._device.type != "cpu":
            first = (position * self._size + rows % self._size) * self._blocks
            return at_blocks(self._keys[rows // self._size], first, self._vocabulary)
        if self._positions:
            return self._few(position)[rows]
        places = [(self._seeds[row // self._size], row % self._size, position) for row in rows.tolist()]
        return at_places(places, self._size, self._vocabulary, self._device)

    def _few(self, position: int) -> Tensor:
        """(rows of all groups, V): one of several positions that are made together."""
        if not self._first <= position < self._first + self._made.shape[1]:
            self._first = position
            of_one = partial(of_group, size=self._size, vocabulary=self._vocabulary)
            drawn = [of_one(seed, positions=self._positions, first=position) for seed in self._seeds]
            self._made = gumbel(torch.from_numpy(np.concatenate(drawn)))
        return self._made[:, position - self._first]


def at_places(
    places: Sequence[tuple[int, int, int]], size: int, vocabulary: int, device: torch.device
) -> Tensor:
    """(N, V) float32 at N places: a group's seed, a completion, a position, in groups of `size`."""
    blocks = blocks_of(vocabulary)
    keys = torch.tensor([signed(seed % (1 << 64)) for seed, _, _ in places], device=device)
    first = torch.tensor([(t * size + g) * blocks for _, g, t in places], device=device)
    return at_blocks(keys, first, vocabulary)


def at_blocks(keys: Tensor, first: Tensor, vocabulary: int) -> Tensor:
    """(N, V) float32 of N streams, on their device: int64 of the bits of their keys, and how many blocks are
    passed over. On a GPU by one kernel where one can be made."""
    blocks = blocks_of(vocabulary)
    if keys.device.type == "cpu":
        drawn = [
            words(key % (1 << 64), at, blocks) for key, at in zip(keys.tolist(), first.tolist(), strict=True)
        ]
        return gumbel(torch.from_numpy(np.stack(drawn)[:, :vocabulary]))
    if keys.device.type == "cuda" and _compiles():
        from swarm.draws import noise_kernel

        return noise_kernel.gumbel_on(keys, first, blocks, vocabulary)
    return gumbel(words_on(keys, first, blocks)[:, :vocabulary])


@cache
def _compiles() -> bool:
    """Whether Triton is here, and a C compiler, which it calls for each kernel."""
    compilers = (os.environ.get("CC", "cc"), "gcc", "clang")
    return importlib.util.find_spec("triton") is not None and any(map(shutil.which, compilers))


def of_group(seed: int, size: int, vocabulary: int, positions: int, first: int = 0) -> NDArray[np.uint32]:
    """The words (G, T, V) of a whole group at T positions from `first` on."""
    blocks = blocks_of(vocabulary)
    drawn = words(seed % (1 << 64), first * size * blocks, positions * size * blocks)
    return drawn.reshape(positions, size, blocks * WORDS)[..., :vocabulary].swapaxes(0, 1)


def of_tokens(
    seed: int,
    size: int,
    vocabulary: int,
    rows: NDArray[np.int64],
    positions: NDArray[np.int64],
    tokens: NDArray[np.int32],
) -> NDArray[np.uint32]:
    """The words of `tokens` (N, n) at N places: completions `rows` (N,) of a group, at `positions` (N,)."""
    first = ((positions * size + rows) * blocks_of(vocabulary))[:, None] + tokens // WORDS
    keys = torch.full((first.size,), signed(seed % (1 << 64)))
    drawn = words_on(keys, torch.from_numpy(first.ravel()), 1).numpy()
    return drawn[np.arange(len(drawn)), (tokens % WORDS).ravel()].reshape(tokens.shape).astype(np.uint32)


def uniform(seed: int, size: int, positions: int) -> NDArray[np.float64]:
    """(G, T) numbers from 0 to 1 of a group, by which swarm.sample.toy draws."""
    stream = _streams.stream
    _streams.begin["state"]["key"][0] = seed % (1 << 64)
    stream.bit_generator.state = _streams.begin
    return stream.random((size, positions))


class _Streams(threading.local):
    """A stream of each thread, begun again for each group: a new one asks the kernel for random bytes that
    no key needs."""

    def __init__(self) -> None:
        self.stream = np.random.Generator(np.random.Philox(key=0))
        self.begin: dict[str, Any] = dict(self.stream.bit_generator.state)


_streams = _Streams()


def blocks_of(vocabulary: int) -> int:
    """Blocks with at least a word for each token."""
    return -(-vocabulary // WORDS)


def gumbel(drawn: Tensor) -> Tensor:
    """-log(-log(1 - u)) with u = (word + 1/2) / 2^32, in float32: at most 22.9, for the largest values are
    those of small u, where float32 is precise. -inf, which no argmax takes, with probability 2^-25."""
    u = drawn.to(torch.float32).add_(0.5).mul_(-(2.0**-32))
    return u.log1p_().neg_().log_().neg_()


def gumbel_of(drawn: NDArray[np.uint32]) -> NDArray[np.float32]:
    """The same of numpy's words, faster for a few: the last bits of logarithms may differ."""
    u = (drawn.astype(np.float32) + np.float32(0.5)) * np.float32(-(2.0**-32))
    with np.errstate(divide="ignore"):
        noise: NDArray[np.float32] = -np.log(-np.log1p(u))
    return noise


def words(key: int, first: int, blocks: int) -> NDArray[np.uint32]:
    """(WORDS x blocks,) of a key's stream; `first`: blocks to skip."""
    raw = np.random.Philox(key=key, counter=first).random_raw(4 * blocks)
    return raw.astype("<u8", copy=False).view("<u4")


def words_on(keys: Tensor, first: Tensor, blocks: int) -> Tensor:
    """The same of many streams, on the device of `keys`: (N,) and (N,) int64 -> (N, WORDS x blocks) int64.
    A 64-bit word is the int64 of the same bits."""
    counter = first[:, None] + torch.arange(1, blocks + 1, device=keys.device)
    c0, c1, c2, c3 = counter, *(torch.zeros_like(counter) for _ in range(3))
    k0, k1 = keys[:, None], torch.zeros_like(keys)[:, None]
    for _ in range(ROUNDS):
        (high0, low0), (high1, low1) = _product(c0, MULTIPLIERS[0]), _product(c2, MULTIPLIERS[1])
        c0, c1, c2, c3 = high1 ^ c1 ^ k0, low1, high0 ^ c3 ^ k1, low0
        k0, k1 = k0 + signed(INCREMENTS[0]), k1 + signed(INCREMENTS[1])
    halves = [half for word in (c0, c1, c2, c3) for half in (word & LOW, word >> 32 & LOW)]
    return torch.stack(halves, -1).flatten(1)


def _product(a: Tensor, factor: int) -> tuple[Tensor, Tensor]:
    """High and low 64 bits of the unsigned product of 128."""
    high, low = factor >> 32, factor & LOW
    a_high, a_low = a >> 32 & LOW, a & LOW
    middle = a_high * low + (a_low * low >> 32 & LOW)
    carried = a_low * high + (middle & LOW)
    return a_high * high + (middle >> 32 & LOW) + (carried >> 32 & LOW), a * signed(factor)


def signed(word: int) -> int:
    """The int64 with the bits of an unsigned word."""
    return word - (1 << 64) if word >> 63 else word
