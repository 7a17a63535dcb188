"""Which groups contradict the true heads of a policy (swarm.draws.heads), for
lab.processes.replays."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import torch
from torch import Tensor

from swarm.draws import noise
from swarm.draws.heads import MARGIN
from swarm.learn.models.policy import LanguageModel

HEADS = 4


def share_named(policy: LanguageModel, groups: Iterable[tuple[str, int, Sequence[Sequence[int]]]]) -> float:
    """Share of groups (prompt, seed, rows), at a temperature of 1, of which a token of the policy's heads
    beats one that was chosen."""
    return float(np.mean([_farthest(policy, *group) > MARGIN for group in groups]))


def _farthest(policy: LanguageModel, prompt: str, seed: int, rows: Sequence[Sequence[int]]) -> float:
    """Nats."""
    places = [(seed, g, t) for g, row in enumerate(rows) for t in range(len(row))]
    chosen, done, farthest = torch.tensor([token for row in rows for token in row]), 0, 0.0
    for logp in policy.distributions([prompt] * len(rows), rows, 1.0):
        part = slice(done, done + len(logp))
        scores = logp + noise.at_places(places[part], len(rows), logp.shape[1], logp.device)
        best = _of(scores, logp.topk(HEADS).indices).max(1).values
        farthest = max(farthest, float((best - _of(scores, chosen[part, None].to(logp.device))[:, 0]).max()))
        done += len(logp)
    return farthest


def _of(scores: Tensor, tokens: Tensor) -> Tensor:
    return scores.gather(1, tokens)
