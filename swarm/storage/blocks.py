"""Bytes as blocks: the units that are hashed, held and sent, and the root that identifies the whole.

    data -- cut --> blocks of 1 MiB -- BLAKE3 --> leaves -- joined --> leaf list -- BLAKE3 --> root

A block's address is its leaf, the leaf list's address is the root: both are blobs like any other, and with
root and size everything below can be checked, block by block. The root of a single block is its leaf: there
is no list, and no round trip for one. Equal blocks of two versions are one blob. A file that many fetch at
once is cut smaller (`file_block`): a peer passes a block on as soon as it has it. Not handled: how blocks
travel (swarm.net.blobs.store), how one version's blocks are made from another's (swarm.storage.patch_files).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, Protocol, TypeAlias

from blake3 import blake3

from swarm.limits import FRAME_LIMIT
from swarm.storage.durable import write_durably
from swarm.types import Digest

Buffer: TypeAlias = bytes | memoryview
Rule: TypeAlias = Callable[[int], int]
"""Bytes of a whole -> bytes of its blocks."""

BLOCK = 1 << 20
"""Bytes of a block: streams are fastest between 256 KiB and 1 MiB, and a lost block is cheap to repeat."""

LEAF = 32
"""Bytes of a BLAKE3 digest."""

CARRIED = FRAME_LIMIT - (64 << 10)
"""Most bytes of a block or a leaf list: the rest of a mail lists its sender's other blocks."""

MOST = CARRIED // LEAF
"""Blocks of a version: as many digests as one mail carries."""

LARGEST = CARRIED // BLOCK * BLOCK * MOST
"""Bytes that can be cut: 378 GiB. Beyond 126 GiB blocks are larger, up to a mail's limit."""

LEAST, PIECES = 64 << 10, 100
"""Fewest bytes of a file's block, and fewest blocks of a large file: with fewer blocks, peers that fetch it
have nothing to give each other at first; smaller ones cost more in requests than they gain."""


class Damaged(Exception):
    """Bytes that were here have been lost or changed; the message says which."""


class Source(Protocol):
    """Where the bytes of a version are: in memory, or in a file (swarm.storage.image)."""

    @property
    def size(self) -> int: ...

    @property
    def path(self) -> Path | None:
        """The file that has them all, if one has."""
        ...

    @property
    def is_checked(self) -> bool:
        """Whether no other program can have changed them."""
        ...

    def read(self, start: int, stop: int) -> Buffer:
        """The bytes from `start` to `stop`. Raises Damaged."""
        ...

    def fill(self, start: int, room: memoryview) -> None:
        """Put the bytes from `start` on into `room`: fresh memory for each block costs more than to read it.
        Raises Damaged."""
        ...


@dataclass(frozen=True)
class InMemory:
    """Bytes as they are."""

    data: bytes
    path: None = None
    is_checked: bool = True

    @property
    def size(self) -> int:
        return len(self.data)

    def read(self, start: int, stop: int) -> Buffer:
        return memoryview(self.data)[start:stop]

    def fill(self, start: int, room: memoryview) -> None:
        room[:] = memoryview(self.data)[start : start + len(room)]


@dataclass(frozen=True)
class Blocks:
    """Bytes, and the leaves of their blocks in order. Equal when the bytes are."""

    source: Source = field(compare=False, repr=False)
    leaves: tuple[Digest, ...] = field(repr=False)
    root: Digest
    step: int = field(compare=False, repr=False)
    """Bytes of a block, but for the last one."""

    @classmethod
    def of(cls, data: bytes, rule: Rule | None = None) -> Blocks:
        """Hashes `data`: a third of a second of CPU for a GB. Raises ValueError when there is none, or too
        much."""
        if not 0 < len(data) <= LARGEST:
            raise ValueError(f"{len(data)} bytes cannot be cut into blocks: between 1 and {LARGEST} can")
        step = (rule or block_size)(len(data))
        leaves = tuple(map(digest_of, cut(data, step)))
        return cls(InMemory(data), leaves, root_of(leaves), step)

    @property
    def size(self) -> int:
        return self.source.size

    @property
    def whole(self) -> bytes:
        """All bytes, in memory. Raises Damaged."""
        return self.source.data if isinstance(self.source, InMemory) else b"".join(self)

    def __len__(self) -> int:
        return len(self.leaves)

    def __getitem__(self, number: int) -> Buffer:
        """A block. Raises Damaged when it does not match its leaf."""
        return self._checked(number, self.source.read(*self._bounds(number)))

    def into(self, number: int, room: bytearray) -> memoryview:
        """The same, put into `room`, which has the bytes of a block."""
        return memoryview(self._checked(number, self.unchecked(number, room)))

    def unchecked(self, number: int, room: bytearray) -> memoryview:
        """The same, for a caller that checks the block by its result."""
        start, stop = self._bounds(number)
        view = memoryview(room)[: stop - start]
        self.source.fill(start, view)
        return view

    def _bounds(self, number: int) -> tuple[int, int]:
        return number * self.step, min((number + 1) * self.step, self.size)

    def _checked(self, number: int, data: Buffer) -> Buffer:
        if not self.source.is_checked and digest_of(data) != self.leaves[number]:
            raise Damaged(f"{self.source.path} is damaged: block {number} is not {self.leaves[number]}")
        return data

    def put(self, path: Path) -> None:
        """The bytes as a file at `path`: a link to the one that has them, or else a copy. Raises OSError, and
        Damaged."""
        here = self.source.path
        if here is None:
            write_durably(path, self.whole)
            return
        path.unlink(missing_ok=True)
        try:
            os.link(here, path)
        except OSError:  # another file system
            path.symlink_to(here.resolve())

    def is_intact(self) -> bool:
        """Whether all blocks match their leaves."""
        try:
            return all(len(block) for block in self)
        except Damaged:
            return False

    def __iter__(self) -> Iterator[Buffer]:
        """The blocks in order."""
        return (self[number] for number in range(len(self)))


def digest_of(data: Buffer) -> Digest:
    """BLAKE3 in lower-case hex."""
    return Digest(blake3(data).hexdigest())


def cut(data: bytes, step: int = 0) -> list[memoryview]:
    """The blocks of `data` in order, of `step` bytes or as those of a release: views, no copies."""
    whole, step = memoryview(data), step or block_size(len(data))
    return [whole[at : at + step] for at in range(0, len(data), step)]


class Grain(NamedTuple):
    """How large blocks are."""

    block: int = BLOCK
    least: int = LEAST


_grain: ContextVar[Grain | None] = ContextVar("grain", default=None)


@contextmanager
def grain(block: int, least: int) -> Iterator[None]:
    """Cut into blocks of other sizes than BLOCK and LEAST meanwhile: in a simulation, where small bytes stand
    in for large ones. Peers that cut differently do not understand each other."""
    before = _grain.set(Grain(block, least))
    try:
        yield
    finally:
        _grain.reset(before)


def block_size(size: int) -> int:
    """Bytes of a block, but for the last one, of a release of `size` bytes."""
    block = (_grain.get() or Grain()).block
    return block * max(1, -(-size // (MOST * block)))


def file_block(size: int) -> int:
    """The same of a file of `size` bytes that many fetch at once: a hundredth, within bounds."""
    block, least = _grain.get() or Grain()
    return max(size // PIECES, least) if size < PIECES * block else block_size(size)


def block_sizes(size: int, step: int = 0) -> list[int]:
    """Bytes of each block of `size` bytes, cut as in `cut`."""
    step = step or block_size(size)
    return [min(step, size - at) for at in range(0, size, step)]


def root_of(leaves: Sequence[Digest]) -> Digest:
    return leaves[0] if len(leaves) == 1 else digest_of(leaf_list(leaves))


def lone_leaf(root: Digest, size: int, step: int = 0) -> tuple[Digest, ...]:
    """The leaf of `size` bytes that are a single block; nothing where there is a list to read."""
    return (root,) if size <= (step or block_size(size)) else ()


def leaf_list(leaves: Sequence[Digest]) -> bytes:
    """Leaves as they are hashed and travel: 32 bytes each."""
    return bytes.fromhex("".join(leaves))


def read_leaf_list(data: Buffer, size: int, step: int = 0) -> tuple[Digest, ...]:
    """The leaves of `size` bytes. Raises ValueError when these are not as many as its blocks."""
    count = -(-size // (step or block_size(size)))
    if len(data) != LEAF * count:
        raise ValueError(f"{len(data)} bytes of leaves do not fit {size} bytes, which are {count} blocks")
    text = data.hex()
    return tuple(Digest(text[at : at + 2 * LEAF]) for at in range(0, len(text), 2 * LEAF))
