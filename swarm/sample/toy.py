"""The simulator's engine: samples from a table of logits in numpy, about 50 microseconds a group.

Weights are safetensors bytes as for every engine; `decode` (bytes -> named tensors) is an argument, because
engines do not import swarm.learn.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar, NamedTuple

import numpy as np

from swarm.core.audits.auditing import Tolerance
from swarm.draws.heads import Head, apart, pack
from swarm.draws.noise import uniform
from swarm.draws.replays import Replayed
from swarm.limits import remember
from swarm.sample.base import Completions
from swarm.storage.weights import Weights
from swarm.types import Heads, Noise

if TYPE_CHECKING:
    from torch import Tensor


TABLES = 8
"""Versions whose tables are kept: the engines of a swarm are a few apart."""


class ToyTable(NamedTuple):
    """The policy as a table."""

    shapes: Mapping[str, list[int]]
    """Of the weights' tensors."""
    logp: np.ndarray
    cdf: np.ndarray


class ToyEngine:
    """See Engine. A prompt is a decimal number and selects a row of the table modulo its size."""

    name = "toy"
    _tables: ClassVar[OrderedDict[tuple[bytes, float], ToyTable]] = OrderedDict()
    """Weights and temperature -> their table: a simulated swarm has a thousand engines, which load the same
    weights."""

    def __init__(
        self, decode: Callable[[bytes], Mapping[str, Tensor]], temperature: float = 1.0, heads: int = 0
    ) -> None:
        self._decode = decode
        self._temperature = temperature
        self._heads = heads
        self._groups = 0
        self._shapes: Mapping[str, list[int]] | None = None
        """Of the first weights."""
        self.version = -1

    def load(self, weights: Weights) -> None:
        table = self._table(weights.data)
        if self._shapes not in (None, table.shapes):
            raise ValueError(f"these weights are of another model: {table.shapes}, here {self._shapes}")
        self._shapes, self._logp, self._cdf = table
        self.version = weights.version

    def _table(self, data: bytes) -> ToyTable:
        key = data, self._temperature
        if (table := self._tables.get(key)) is None:
            table = self._made(data)
            remember(self._tables, key, table, TABLES)
        return table

    def _made(self, data: bytes) -> ToyTable:
        tensors = self._decode(data)
        if "logits" not in tensors or tensors["logits"].ndim != 3:
            raise ValueError(f"these weights are not a table of logits: {sorted(tensors)[:3]}")
        logits = tensors["logits"].float().numpy().astype(np.float64) / self._temperature
        logits -= logits.max(-1, keepdims=True)
        logp = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
        cdf = np.exp(logp).cumsum(-1)
        cdf[..., -1] = 1.0  # rounding must not leave a gap above the last token
        return ToyTable({name: [*tensor.shape] for name, tensor in tensors.items()}, logp, cdf)

    def sample(self, prompts: Sequence[str], group_size: int, seeds: Sequence[int]) -> list[Completions]:
        self._groups += len(prompts)
        return [self._group(prompt, group_size, seed) for prompt, seed in zip(prompts, seeds, strict=True)]

    def greedy(self, prompts: Sequence[str]) -> list[str]:
        buckets = len(self._logp)
        return [*_texts(self._logp[[int(prompt) % buckets for prompt in prompts]].argmax(-1))]

    def stop(self) -> None:
        """Nothing takes time."""

    def statistics(self) -> dict[str, float]:
        return {"version": self.version, "groups": self._groups}

    def close(self) -> None:
        """Nothing to free."""

    def row(self, prompt: str) -> tuple[np.ndarray, np.ndarray]:
        """Log-probabilities and distribution functions (T, V) of a prompt's completions."""
        bucket = int(prompt) % len(self._cdf)
        return self._logp[bucket], self._cdf[bucket]

    def _group(self, prompt: str, group_size: int, seed: int) -> Completions:
        logp, cdf = self.row(prompt)
        letters = len(cdf)
        tokens = (uniform(seed, group_size, letters)[:, :, None] >= cdf).sum(-1)
        return Completions(
            lengths=(letters,) * group_size,
            tokens=tokens.astype(np.int32).ravel(),
            logprobs=logp[np.arange(letters), tokens].astype(np.float32).ravel(),
            texts=_texts(tokens),
            noise=Noise.INVERSE,
            heads=table_heads(logp, self._heads, group_size),
        )


class TableReplay:
    """A Replay of groups of this engine. Tables are computed alike wherever they are: margins of honest
    groups are 0."""

    noise = Noise.INVERSE
    allowed = Tolerance(hard=1e-3, mean=1e-6, claimed=1e-3)

    def __init__(self, decode: Callable[[bytes], Mapping[str, Tensor]], temperature: float = 1.0) -> None:
        self._engine = ToyEngine(decode, temperature)

    def load(self, weights: Weights) -> None:
        self._engine.load(weights)

    def replay(
        self, prompt: str, rows: Sequence[Sequence[int]], seed: int, head: Head | None = None
    ) -> Replayed:
        """A margin is -log(1 - d), where the uniform number is d away from those that draw the token."""
        logp, cdf = self._engine.row(prompt)
        letters = len(cdf)
        if any(len(row) != letters for row in rows):
            wrong = np.full(sum(map(len, rows)), np.inf, np.float32)
            return Replayed(wrong, -wrong)
        tokens, drawn = np.array(rows), uniform(seed, len(rows), letters)
        place, before = np.arange(letters), np.concatenate([np.zeros((letters, 1)), cdf[:, :-1]], 1)
        away = np.maximum(np.maximum(before[place, tokens] - drawn, drawn - cdf[place, tokens]), 0.0)
        return Replayed(
            -np.log1p(-away).astype(np.float32).ravel(),
            logp[place, tokens].astype(np.float32).ravel(),
            _beside(head, np.tile(logp, (len(rows), 1))) if head is not None else None,
        )


def table_heads(logp: np.ndarray, count: int, group_size: int) -> Heads | None:
    """Of a group of a prompt with these log-probabilities (T, V): all its completions have the same ones."""
    if not count:
        return None
    order = np.argsort(-logp, -1, kind="stable")[:, :count]
    both = order, np.take_along_axis(logp, order, 1)
    return pack(*(np.tile(each, (group_size, 1)) for each in both))


def _beside(head: Head, logp: np.ndarray) -> np.ndarray:
    """(N,) nats between heads and the log-probabilities (N, V) of all tokens."""
    highest = np.sort(logp, -1)[:, ::-1][:, : head.tokens.shape[1]]
    return apart(head, np.take_along_axis(logp, head.tokens, -1), highest).astype(np.float32)


def _texts(rows: np.ndarray) -> tuple[str, ...]:
    """The letters of tokens (N, T), of all rows at once: a call of numpy costs more than a row."""
    letters, length = (rows + ord("a")).astype(np.uint8).tobytes().decode("latin-1"), rows.shape[1]
    return tuple(letters[at : at + length] for at in range(0, len(letters), length))
