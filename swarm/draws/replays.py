"""The result of replaying a group, and the port through which auditors get it.

    prompt, rows, seed --Replay--> Replayed --weigh, what the sampler claims--> Weighed
    (swarm.core.audits.auditing)

Replays are made by swarm.learn.replay under language models, by swarm.sample.toy under the simulator's table.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from swarm.core.audits.auditing import FAR, LARGE, SELDOM, SIZES_LIMIT, Tolerance, Weighed
from swarm.draws.heads import Head, of_group
from swarm.storage.weights import Weights
from swarm.types import Group, Noise

CERTAIN = -0.01
"""Log-probability above which a token decides nothing: whatever the seed, it would have been drawn."""

MOST = 1.0
"""Most nats that one token adds to a sampler's drift."""

MOST_SIZES = LARGE + SIZES_LIMIT / 2
"""Usual sizes of one token that count at most: neither one nor two suspend their sampler."""

LARGEST = 1000.0
"""Nats: the margin of a token that could not be drawn at all."""


@dataclass(frozen=True)
class Replayed:
    """One forward pass over a group's text under the version that it claims."""

    margins: NDArray[np.float32]
    """(sum T_i,) nats, at least 0: by how much the best token's score exceeds the chosen one's."""
    logprobs: NDArray[np.float32]
    """(sum T_i,) natural-log probabilities of the chosen tokens."""
    apart: NDArray[np.float32] | None = None
    """(sum T_i,) nats between the heads of the group and those of the replay (swarm.draws.heads.apart)."""
    usual: float = math.inf
    """Nats: mean of the margins that are not 0, of honest sampling in another precision; infinite: nothing is
    known of it, and every margin is small."""


class Replay(Protocol):
    """Replays groups of one kind of noise, under the policy that it loaded last."""

    noise: Noise

    @property
    def allowed(self) -> Tolerance:
        """By its replays so far."""
        ...

    def load(self, weights: Weights) -> None:
        """Replay under these weights from now on. Raises ValueError for weights of another model, Damaged."""
        ...

    def replay(
        self, prompt: str, rows: Sequence[Sequence[int]], seed: int, head: Head | None = None
    ) -> Replayed:
        """The group with this prompt, seed and heads, whose completions are `rows` (token ids)."""
        ...


def weigh(replayed: Replayed, claimed: Sequence[float] | NDArray[np.float32], allowed: Tolerance) -> Weighed:
    """The figures of a group whose sampler claims these log-probabilities, (sum T_i,). Values that are not
    finite count as off, and so does a token with a false head."""
    margins = np.nan_to_num(replayed.margins.astype(np.float64), nan=np.inf)
    differ = np.abs(replayed.logprobs.astype(np.float64) - np.asarray(claimed, np.float64))
    differ = np.nan_to_num(differ, nan=np.inf)
    sizes = np.minimum(np.minimum(margins[margins > 0], LARGEST) / replayed.usual, MOST_SIZES)
    forgotten = SELDOM * len(margins)
    farthest = differ if replayed.apart is None else np.maximum(differ, replayed.apart)
    return Weighed(
        tokens=len(margins),
        deciding=int((replayed.logprobs < CERTAIN).sum()),
        off=int(((margins > allowed.hard) | (farthest > allowed.hard)).sum()),
        largest=float(min(max(margins.max(), farthest.max()), LARGEST)),
        drift=float((np.minimum(margins, MOST) - allowed.mean).sum()),
        claimed=float(max(0.0, np.minimum(differ, LARGEST).mean() - allowed.claimed)),
        large=float((sizes - LARGE).sum() - forgotten),
        far=float(np.maximum(sizes - FAR, 0.0).sum() - forgotten),
    )


def replay_group(replay: Replay, prompt: str, group: Group) -> Replayed:
    """The replay of a group that is not malformed, and whose heads are of the vocabulary."""
    return replay.replay(prompt, rows_of(group), group.seed, of_group(group))


def rows_of(group: Group) -> list[list[int]]:
    """The token ids of each completion."""
    tokens = np.frombuffer(group.tokens.data, "<i4")
    return [row.tolist() for row in np.split(tokens, np.cumsum(group.lengths)[:-1])]


def claims_of(group: Group) -> NDArray[np.float32]:
    """(sum T_i,) The log-probabilities that its sampler claims."""
    return np.frombuffer(group.logprobs.data, "<f4")
