"""A version's blocks from another version's: the patches of all blocks in one file.

    make(old blocks, new)             -> file
    compose([v -> v+1, ...], size)    -> the file v -> v+k
    applied(old blocks, file, root)   -> new blocks, whose root is what was asked for

    file = for each block, in order, the length of its patch (uint32, little-endian), then the patches

A block that did not change has a patch of no bytes, and is neither copied nor hashed again. A file comes from
a stranger: what does not end with the root that was asked for is a PatchError. Memory is that of the
blocks that changed. Not handled: one block's patch (swarm.patches), who makes and who fetches files
(peers.runtime.patch_ladder).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from swarm import patches
from swarm.blocks import Blocks, Buffer, block_sizes, cut, digest_of, root_of
from swarm.patches import PatchError
from swarm.types import Digest

_LENGTH = np.dtype("<u4")


def make(old: Sequence[Buffer], new: Blocks) -> bytes:
    """The file that makes `new` of blocks of the same sizes; ValueError for others. Encodes 0.8 GB of weights
    per second of CPU."""
    return _joined([patches.encode(*pair) for pair in zip(old, cut(new.whole), strict=True)])


def compose(files: Sequence[bytes], size: int) -> bytes:
    """The file that does to `size` bytes what these do in turn. Raises PatchError."""
    steps = [_read(file, size) for file in files]
    return _joined(
        [patches.compose([step[k] for step in steps], length) for k, length in enumerate(block_sizes(size))]
    )


def applied(
    old: Sequence[Buffer], leaves: Sequence[Digest], file: bytes, size: int, root: Digest
) -> tuple[list[Buffer], list[Digest]]:
    """The blocks of the `size` bytes below `root` and their leaves, made of blocks with these leaves. Raises
    PatchError."""
    changes = _read(file, size)
    if len(old) != len(changes):
        raise PatchError(f"patches of {len(changes)} blocks, and the base has {len(old)}")
    blocks, found = list(old), list(leaves)
    for k, change in enumerate(changes):
        if len(change):
            blocks[k] = patches.apply(blocks[k], change)
            found[k] = digest_of(blocks[k])
    if (made := root_of(found)) != root:
        raise PatchError(f"the patches make {made} and not {root}")
    return blocks, found


def _joined(parts: Sequence[bytes]) -> bytes:
    return np.array([len(part) for part in parts], _LENGTH).tobytes() + b"".join(parts)


def _read(file: bytes, size: int) -> list[memoryview]:
    """One patch for each block of `size` bytes. Raises PatchError."""
    count = len(block_sizes(size))
    head = count * _LENGTH.itemsize
    if len(file) < head:
        raise PatchError(f"a file of {len(file)} bytes has no patches of {count} blocks")
    ends = np.frombuffer(file, _LENGTH, count).cumsum(dtype=np.int64) + head
    if ends[-1] != len(file):
        raise PatchError(f"patches of {ends[-1] - head} bytes in a file that has {len(file) - head}")
    starts = [head, *ends[:-1].tolist()]
    return [memoryview(file)[start:end] for start, end in zip(starts, ends.tolist(), strict=True)]
