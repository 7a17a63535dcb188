"""Sketches of the members' parts of a round: a reducer's summary of received values, to compare them with a
gradient that it computes later.

    part (n,), its place in the vector, a secret key -> signs +-1 by key and place -> folded sums, (BUCKETS,)

The sketch is linear, and its inner products are those of the vectors on average (AMS sketch: Alon, Matias,
Szegedy, 1996). Two equal vectors have equal sketches; the cosine of two sketches misses that of the vectors
by (1 - cosine) / sqrt(BUCKETS) or so. Without the key another vector with the same sketch cannot be made.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F

from swarm.types import PeerId

BUCKETS = 1024
"""Sums of a sketch, 8 bytes each: 8 KiB a member, and errors of 3 % of the distance."""

SIGNS = torch.where(torch.arange(256)[:, None] >> torch.arange(8) & 1 == 1, 1.0, -1.0)
"""(256, 8): of each byte, by its bits: drawing one by one costs ten times as much as all else."""

Span = tuple[int, int]
"""First value of a part in the vector, and how many it has."""


class Sketches(NamedTuple):
    """Of one round."""

    key: int
    spans: Sequence[Span]
    """The sketched spans of each vector: the parts that this peer reduced."""
    members: Mapping[PeerId, torch.Tensor]
    """(BUCKETS,) float64 of each other member."""

    def of(self, vector: torch.Tensor) -> torch.Tensor:
        """The same sketch of a vector (P,)."""
        total = empty()
        for start, size in self.spans:
            add(total, vector[start : start + size], self.key, start)
        return total


def empty() -> torch.Tensor:
    return torch.zeros(BUCKETS, dtype=torch.float64)


def add(total: torch.Tensor, part: torch.Tensor, key: int, start: int) -> None:
    """Add a finite part that begins at the value `start` to a sketch."""
    generator = torch.Generator().manual_seed((key + start) % (1 << 63))
    values, flat = part.numel(), part.detach().reshape(-1)
    words = torch.empty(-(-values // 64), dtype=torch.int64).random_(-(1 << 63), None, generator=generator)
    signed = SIGNS.index_select(0, words.view(torch.uint8).int()).view(-1)[:values].mul_(flat)
    total += F.pad(signed, (0, -values % BUCKETS)).view(-1, BUCKETS).sum(0, dtype=torch.float64)
