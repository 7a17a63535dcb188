"""Which task a sampler draws next: a stream of its own that never meets another sampler's.

The index is a hash of (run seed, peer, incarnation, count): no two samplers share tasks but by chance, a
restart does not repeat them, and nobody has to be asked. Task sources reduce the index to their own range.
"""

from __future__ import annotations

import hashlib
from typing import NamedTuple

from swarm.types import PeerId

INDEX_BITS = 48
"""Bits of an index: it fits every integer on the way (msgpack, JSON in a browser, numpy) and repeats by
chance once in 16 million tasks."""


class Draw(NamedTuple):
    task: int
    seed: int


class Curriculum:
    def __init__(self, run_seed: int, peer: PeerId, incarnation: int) -> None:
        self._prefix = f"{run_seed}/{peer}/{incarnation}/".encode()
        self.position = 0

    def next(self) -> Draw:
        digest = hashlib.blake2b(self._prefix + str(self.position).encode(), digest_size=12).digest()
        self.position += 1
        return Draw(int.from_bytes(digest[:6], "big"), int.from_bytes(digest[6:10], "big"))
