"""Replays a group's sampling from its finished text: one forward pass says how far each token is from the one
that the group's noise chooses.

    prompt, rows of a group, its seed --replay--> max over v of (log p + noise)(v) - (log p + noise)(token),
                                                  log p(token)

A margin is 0 where the replaying policy chooses the same token. Honest sampling elsewhere rounds otherwise:
its margins are small and seldom above 0. Another text, seed, temperature, policy or truncation makes large
ones. Not handled here: which margins are too large, and what follows (swarm.core.auditing).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from swarm import noise
from swarm.blocks import Blocks
from swarm.core.auditing import Tolerance
from swarm.learn.policy import LanguageModel
from swarm.replays import Replayed
from swarm.types import Noise
from swarm.weights import Weights

HONEST = Tolerance(hard=0.5, mean=1e-3)
"""Of models in any precision: benchmarks.processes.replays, docs/trust.md."""


class ModelReplay:
    """A Replay under a language model. `load_weights` is that of swarm.sample.hf."""

    noise = Noise.GUMBEL
    allowed = HONEST

    def __init__(
        self,
        policy: LanguageModel,
        load_weights: Callable[[nn.Module, Blocks], None],
        ends: Sequence[int],
        longest: int,
        temperature: float,
    ) -> None:
        """`longest`: tokens of a completion that no end token ends."""
        self._policy, self._load_weights, self._temperature = policy, load_weights, temperature
        self._ends, self._longest = frozenset(ends), longest
        policy.module.eval()

    def load(self, weights: Weights) -> None:
        self._load_weights(self._policy.module, weights.blocks)

    def replay(self, prompt: str, rows: Sequence[Sequence[int]], seed: int) -> Replayed:
        found = replay(self._policy, prompt, rows, self._temperature, seed)
        wrong = np.concatenate([self._ended_otherwise(row) for row in rows])
        return Replayed(np.where(wrong, np.float32(np.inf), found.margins), found.logprobs)

    def _ended_otherwise(self, row: Sequence[int]) -> NDArray[np.bool_]:
        """(T,) Which tokens come after an end, or are the last one though nothing ended there."""
        ends = np.array([token in self._ends for token in row])
        wrong = ends.cumsum() - ends > 0
        wrong[-1] |= not ends[-1] and len(row) < self._longest
        return wrong


def replay(
    policy: LanguageModel, prompt: str, rows: Sequence[Sequence[int]], temperature: float, seed: int
) -> Replayed:
    """Of the G completions `rows` (token ids) of the group that was drawn with this seed, (sum T_i,)."""
    places = [(seed, g, t) for g, row in enumerate(rows) for t in range(len(row))]
    chosen = torch.tensor([token for row in rows for token in row])
    margins, logprobs = list[NDArray[np.float32]](), list[NDArray[np.float32]]()
    done = 0
    for logp in policy.distributions([prompt] * len(rows), rows, temperature):
        part = slice(done, done + len(logp))
        tokens = chosen[part, None].to(logp.device)
        scores = logp + noise.at_places(places[part], len(rows), logp.shape[1], logp.device)
        margins.append((scores.max(-1).values - scores.gather(1, tokens)[:, 0]).cpu().numpy())
        logprobs.append(logp.gather(1, tokens)[:, 0].cpu().numpy())
        done += len(logp)
    return Replayed(np.concatenate(margins), np.concatenate(logprobs))
