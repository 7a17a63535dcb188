"""What a sampler asks of an engine: load a policy, sample groups, answer greedily."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from swarm.types import Digest


@dataclass(frozen=True, eq=False)
class Completions:
    """G completions of one prompt; `lengths` says how the flat arrays are cut."""

    lengths: tuple[int, ...]
    """(G,) tokens each, the end token included."""
    tokens: NDArray[np.int32]
    """(sum T_i,)"""
    logprobs: NDArray[np.float32]
    """(sum T_i,) natural-log probabilities of the distribution that was really sampled."""
    texts: tuple[str, ...]
    """(G,) without special tokens."""


class Engine(Protocol):
    name: str

    def load(self, weights: bytes, version: int, digest: Digest) -> None:
        """Sample from these weights (already checked against `digest`) from now on. Raises ValueError, keeping the old policy."""
        ...

    def sample(self, prompts: Sequence[str], group_size: int, seed: int) -> list[Completions]:
        """One group per prompt. Prompt i is sampled with seed + i, whatever its neighbours: a group can be replayed alone."""
        ...

    def greedy(self, prompts: Sequence[str]) -> list[str]:
        """The most likely completion of each prompt, token by token."""
        ...

    def statistics(self) -> dict[str, float]: ...
