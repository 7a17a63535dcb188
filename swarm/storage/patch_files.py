"""A version's blocks from another version's: the patches of all blocks in one file.

    make(old, new)                    -> file
    compose([v -> v+1, ...], size)    -> the file v -> v+k
    apply(old, [(file, root), ...])   -> a draft of the version after the last file

    file = for each block, in order, the length of its patch (uint32, little-endian), then the patches

A block that did not change has a patch of no bytes, and is not hashed again. A file comes from a stranger:
one whose result does not have the requested root is a UselessFile. Memory is that of a block, and of the file
that is made. Not handled: one block's patch (swarm.storage.patches), where versions lie
(swarm.storage.image), making and fetching files (peers.runtime.releases.patch_ladder).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from swarm.storage import patches
from swarm.storage.blocks import Blocks, Buffer, block_sizes, digest_of, root_of
from swarm.storage.image import Draft
from swarm.storage.patches import PatchError
from swarm.types import Digest

_LENGTH = np.dtype("<u4")


class UselessFile(PatchError):
    """A file of a chain, counted from 0, whose result is not the expected one."""

    def __init__(self, step: int, reason: object) -> None:
        super().__init__(str(reason))
        self.step = step


def make(old: Blocks, new: Blocks) -> bytes:
    """The file that makes `new` of `old`; ValueError when they are not of one size. Encodes 0.8 GB of weights
    per second of CPU."""
    if old.size != new.size:
        raise ValueError(f"a patch keeps the size: {old.size} bytes, then {new.size}")
    return _joined([patches.encode(*pair) for pair in zip(old, new, strict=True)])


def compose(files: Sequence[Blocks], size: int) -> bytes:
    """The file that does to `size` bytes what these do in turn. Raises PatchError."""
    steps = [_Patches(file, size) for file in files]
    return _joined(
        [patches.compose([step[k] for step in steps], length) for k, length in enumerate(block_sizes(size))]
    )


def apply(old: Blocks, chain: Sequence[tuple[Blocks, Digest]], draft: Draft) -> Blocks:
    """The result of applying these files, each with the root of its own result, to `old` in turn, written to
    `draft`.

    Raises UselessFile for the first with another result: so has one on a base that is damaged.
    """
    steps = [_opened(step, file, old.size) for step, (file, _) in enumerate(chain)]
    leaves: list[list[Digest]] = [[] for _ in chain]
    room = bytearray(old.step)
    for number, leaf in enumerate(old.leaves):
        changes = [of_step[number] for of_step in steps]
        block = old.unchecked(number, room) if any(map(len, changes)) else memoryview(old[number])
        for step, change in enumerate(changes):
            if len(change):
                try:
                    patches.change(block, change)
                except PatchError as error:
                    raise UselessFile(step, error) from error
                leaf = digest_of(block)
            leaves[step].append(leaf)
        draft.add(block, leaf)
    for step, (_, root) in enumerate(chain):
        if (made := root_of(leaves[step])) != root:
            raise UselessFile(step, f"the patches make {made} and not {root}")
    return draft.done()


def _joined(parts: Sequence[bytes]) -> bytes:
    return np.array([len(part) for part in parts], _LENGTH).tobytes() + b"".join(parts)


def _opened(step: int, file: Blocks, size: int) -> _Patches:
    try:
        return _Patches(file, size)
    except PatchError as error:
        raise UselessFile(step, error) from error


class _Patches:
    """The patches of a file, one for each block of `size` bytes. Raises PatchError."""

    def __init__(self, file: Blocks, size: int) -> None:
        self._source = file.source
        count = len(block_sizes(size))
        head = count * _LENGTH.itemsize
        if file.size < head:
            raise PatchError(f"a file of {file.size} bytes has no patches of {count} blocks")
        ends = np.frombuffer(file.source.read(0, head), _LENGTH).cumsum(dtype=np.int64) + head
        if ends[-1] != file.size:
            raise PatchError(f"patches of {ends[-1] - head} bytes in a file that has {file.size - head}")
        self._ends = [head, *ends.tolist()]

    def __getitem__(self, number: int) -> Buffer:
        start, stop = self._ends[number : number + 2]
        return self._source.read(start, stop) if stop > start else b""
