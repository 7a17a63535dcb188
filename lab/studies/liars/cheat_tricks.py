"""A cheat's demands on a policy, beyond those of every sampler.

    Tricks       of any policy: its log-probabilities of any text, what it draws at another temperature
    TableTricks  of the simulator's

Not handled here: which cheat needs which (lab.studies.liars.cheats); those of a language model, which no
program that ships has (cheating_peer.py of the tests).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from swarm.sample.base import Completions
from swarm.sample.toy import table_heads


class Tricks(Protocol):
    """A cheat's demands on a policy, beyond those of every sampler."""

    @property
    def letters(self) -> int:
        """How many tokens there are."""
        ...

    def said(self, prompt: str, rows: Sequence[Sequence[int]]) -> Completions:
        """Completions of these tokens, with the log-probabilities that the policy has for them."""
        ...

    def cooled(self, prompt: str, size: int, seed: int, divisor: float) -> Sequence[Sequence[int]]:
        """The seed's draws at another temperature."""
        ...


class TableTricks(NamedTuple):
    """Those of the simulator's table of a prompt."""

    table: NDArray[np.float64]
    """(letters, alphabet) log-probabilities."""
    heads: int

    @property
    def letters(self) -> int:
        return self.table.shape[1]

    def said(self, prompt: str, rows: Sequence[Sequence[int]]) -> Completions:
        tokens = np.asarray(rows)
        return Completions(
            lengths=(tokens.shape[1],) * len(tokens),
            tokens=tokens.astype(np.int32).ravel(),
            logprobs=self.table[np.arange(tokens.shape[1]), tokens].astype(np.float32).ravel(),
            texts=tuple("".join(chr(ord("a") + token) for token in row) for row in tokens.tolist()),
            heads=table_heads(self.table, self.heads, len(tokens)),
        )

    def cooled(self, prompt: str, size: int, seed: int, divisor: float) -> Sequence[Sequence[int]]:
        return sampled(seed, size, self.table / divisor).tolist()


def sampled(seed: int, size: int, table: NDArray[np.float64]) -> NDArray[np.int64]:
    """(G, letters) the seed's draws from another table of logits."""
    p = np.exp(table - table.max(-1, keepdims=True)).cumsum(-1)
    uniform = np.random.Generator(np.random.Philox(key=seed)).random((size, len(table), 1))
    return (uniform >= p / p[:, -1:] - 1e-12).sum(-1)
