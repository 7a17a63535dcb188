"""Replays a group's sampling from its finished text: one forward pass says how far each token is from the one
that the group's noise chooses.

    prompt, rows of a group, its seed --margins--> max over v of (log p + noise)(v) - (log p + noise)(token)

0 where the replaying policy chooses the same token. Honest sampling elsewhere rounds otherwise: its margins
are small and seldom above 0. Another text, seed, temperature, policy or truncation makes large ones. Not
handled here: which margins are too large, and what follows.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from swarm import noise
from swarm.learn.policy import LanguageModel


def margins(
    policy: LanguageModel, prompt: str, rows: Sequence[Sequence[int]], temperature: float, seed: int
) -> list[NDArray[np.float32]]:
    """Nats, (T_i,) for each of the G completions `rows` (token ids) of the group that was drawn with this
    seed."""
    places = [(seed, g, t) for g, row in enumerate(rows) for t in range(len(row))]
    chosen = torch.tensor([token for row in rows for token in row])
    found: list[NDArray[np.float32]] = []
    done = 0
    for logp in policy.distributions([prompt] * len(rows), rows, temperature):
        part = slice(done, done + len(logp))
        scores = logp + noise.at_places(places[part], len(rows), logp.shape[1], logp.device)
        taken = scores.gather(1, chosen[part, None].to(logp.device))[:, 0]
        found.append((scores.max(-1).values - taken).cpu().numpy())
        done += len(logp)
    return np.split(np.concatenate(found), np.cumsum([len(row) for row in rows])[:-1])
