"""Which task a sampler draws next: each sampler has its own pseudo-random stream of task indices.

The index is a hash of (run seed, peer, incarnation, count): two samplers share tasks only by chance, a
restart does not repeat them, and no coordination is needed. Task sources reduce the index to their own range.
"""

from __future__ import annotations

import hashlib
from typing import NamedTuple

from swarm.types import PeerId

INDEX_BITS = 48
"""Bits of an index: it fits the integers of msgpack, of JSON in a browser and of numpy, and the first
repetition by chance is expected after some 16 million tasks."""


class Draw(NamedTuple):
    """One task to sample."""

    task: int
    """Task index."""
    seed: int
    """Seed of the group's sampling."""


class Curriculum:
    """The stream of one sampler."""

    def __init__(self, run_seed: int, peer: PeerId, incarnation: int) -> None:
        self._prefix = f"{run_seed}/{peer}/{incarnation}/".encode()
        self.position = 0

    def next(self) -> Draw:
        """The next task of the stream."""
        digest = hashlib.blake2b(self._prefix + str(self.position).encode(), digest_size=12).digest()
        self.position += 1
        return Draw(int.from_bytes(digest[:6], "big"), int.from_bytes(digest[6:10], "big"))
