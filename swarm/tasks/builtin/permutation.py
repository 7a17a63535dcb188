"""A pseudo-random permutation of 0 ... size - 1 by key, computed position by position without a table.

A Feistel network permutes the numbers of an even count of bits; one that falls outside the range is sent
through again until it is inside (cycle walking, Black and Rogaway 2002): at most four times as many numbers
as needed, so four rounds of it on average at worst. Not for secrets.
"""

from __future__ import annotations

import hashlib

ROUNDS = 6
"""Four make it hard to tell from a random one where both halves are wide; ranges here may be of a few
numbers."""


def permuted(position: int, size: int, key: str) -> int:
    """The image of `position`, 0 to `size` - 1, under the permutation of `key`."""
    half = max(1, ((size - 1).bit_length() + 1) // 2)
    mask = (1 << half) - 1
    while True:
        left, right = position >> half, position & mask
        for number in range(ROUNDS):
            left, right = right, left ^ (_mixed(f"{key}/{number}/{right}") & mask)
        position = left << half | right
        if position < size:
            return position


def _mixed(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")
