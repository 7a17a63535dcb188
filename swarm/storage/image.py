"""A version's bytes as one file: made block by block, read in parts, removed with its last user.

    version 4   [a][b][c][d]    whole: served, sampled from, learned on; never written again
                 |  | patch     one block at a time: read, checked, changed, hashed, written
    a draft     [a][B][c][D]    without a name and without a reader, until its leaves make the requested
                                root; then it is version 5

Invariants: a file with a name has only blocks of one version; a reader of a version can finish reading
it, since a file lives as long as an object that holds it; memory is that of a block. A kill leaves the
older file as it was. A step at a real learning rate moves values in every page of a file, so a new file
costs as many writes as changes in the old one would, and needs no lock, no undo and no repair. Blocks
that the disk refuses are held in memory; without a path, all are. Not handled: reports of a refusal
(swarm.net.blobs.store), names of files (swarm.net.blobs.shelves).
"""

from __future__ import annotations

import contextlib
import errno
import os
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from swarm.storage.blocks import Blocks, Buffer, Damaged, block_size, digest_of, root_of
from swarm.types import Digest


class Image:
    """Bytes of one version. One thread writes, before others read."""

    def __init__(self, size: int, path: Path | None = None, step: int = 0) -> None:
        """`size` bytes in the file at `path`, with its present content; in memory without a path. `step`:
        bytes of a block, when not those of a release's."""
        self.size, self.step = size, step or block_size(size)
        self._memory: dict[int, Buffer] = {}
        """Number of a block -> its bytes. With a file, only those that the disk refused."""
        self.refusal = ""
        """Why the disk refused the last write; empty when it accepted it."""
        self._wanted = False
        self._file: _File | None = None
        if path is not None:
            self._open(path)

    def _open(self, path: Path) -> None:
        try:
            self._file = _File(path, self.size)
        except OSError as error:
            self.refusal = error.strerror or str(error)
            return
        self._file.wanted = self._wanted
        weakref.finalize(self, self._file.end).atexit = False

    @property
    def path(self) -> Path | None:
        """The file that has all bytes, if one has."""
        return self._file.path if self._file is not None and not self._memory else None

    @property
    def is_checked(self) -> bool:
        """Whether no other program can have changed it."""
        return self._file is None

    def write(self, number: int, block: Buffer) -> None:
        if self._file is not None:
            try:
                self._file.write(number * self.step, block)
                self._memory.pop(number, None)
                self.refusal = ""
                return
            except OSError as error:
                self.refusal, block = error.strerror or str(error), bytes(block)
        self._memory[number] = block if memoryview(block).readonly else bytes(block)

    def read(self, start: int, stop: int) -> Buffer:
        """The bytes from `start` to `stop`. Raises Damaged where the file does not have them any more."""
        first, end = start // self.step, -(-stop // self.step)
        parts = [self._part(number, start, stop) for number in range(first, end)]
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def fill(self, start: int, room: memoryview) -> None:
        """Put the bytes from `start` on into `room`. Raises Damaged."""
        if self._file is not None and not self._memory:
            self._file.fill(start, room)
        else:
            room[:] = self.read(start, start + len(room))

    def _part(self, number: int, start: int, stop: int) -> Buffer:
        """What lies between `start` and `stop` of a block."""
        begin = number * self.step
        start, stop = max(start, begin), min(stop, begin + self.step)
        if (held := self._memory.get(number)) is not None:
            return memoryview(held)[start - begin : stop - begin]
        if self._file is None:
            raise Damaged(f"block {number} was never written")
        return self._file.read(start, stop)

    def sync(self) -> None:
        """fsync of the file. Raises OSError."""
        if self._file is not None:
            os.fsync(self._file.descriptor)

    def move(self, path: Path) -> None:
        """Give the file this name. Raises OSError."""
        if self._file is not None:
            self._file.path.rename(path)
            self._file.path = path

    def store(self, path: Path) -> None:
        """Retry the refused writes at `path`, of bytes that are all here; `refusal` shows whether it still
        refuses. Raises OSError when the disk does not accept the file's name."""
        self.refusal = ""
        if self._file is None:
            self._open(path)
        elif self._file.path != path:
            self.move(path)
        for number, block in [*self._memory.items()] if self._file is not None else ():
            self.write(number, block)

    def want(self, wanted: bool) -> None:
        """Whether the file stays when no user holds this object any more."""
        self._wanted = wanted
        if self._file is not None:
            self._file.wanted = wanted


class _File:
    """Descriptor and name of an image's file. It is wanted once it has been named."""

    def __init__(self, path: Path, size: int) -> None:
        self.path, self.wanted = path, False
        try:
            self.descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            if error.errno != errno.EROFS or not path.exists():
                raise
            self.descriptor = os.open(path, os.O_RDONLY)  # present blocks can still be given
        try:
            if os.fstat(self.descriptor).st_size != size:
                os.ftruncate(self.descriptor, size)
        except OSError:
            os.close(self.descriptor)
            if not path.stat().st_size:  # this is what opening it made
                path.unlink()
            raise

    def write(self, at: int, data: Buffer) -> None:
        left = memoryview(data)
        while len(left):
            done = os.pwrite(self.descriptor, left, at)
            at, left = at + done, left[done:]

    def read(self, start: int, stop: int) -> bytes:
        data = bytearray(stop - start)
        self.fill(start, memoryview(data))
        return bytes(data)

    def fill(self, start: int, room: memoryview) -> None:
        try:
            count = os.preadv(self.descriptor, [room], start)
        except OSError as error:
            raise Damaged(f"{self.path} is not readable ({error.strerror})") from error
        if count != len(room):
            raise Damaged(f"{self.path} is damaged: it ends at byte {start + count}")

    def end(self) -> None:
        os.close(self.descriptor)
        if not self.wanted:
            with contextlib.suppress(OSError):  # a remaining file is removed at the next start
                self.path.unlink(missing_ok=True)


@dataclass(frozen=True)
class ReadOnly:
    """A version's file that another process made, which may change or remove it."""

    path: Path
    size: int
    is_checked: bool = False

    def read(self, start: int, stop: int) -> Buffer:
        data = bytearray(stop - start)
        self.fill(start, memoryview(data))
        return memoryview(data)

    def fill(self, start: int, room: memoryview) -> None:
        try:
            with open(self.path, "rb", buffering=0) as file:
                count = os.preadv(file.fileno(), [room], start)
        except OSError as error:
            raise Damaged(f"{self.path} is not readable ({error.strerror})") from error
        if count != len(room):
            raise Damaged(f"{self.path} is damaged: it ends at byte {start + count}")


class Draft:
    """A version in the making, written from its first byte to its last."""

    def __init__(self, image: Image) -> None:
        self.image, self._leaves = image, list[Digest | None]()
        """The leaves that are known by now."""
        self._part = bytearray()

    def write(self, data: Buffer) -> None:
        """Append bytes."""
        left, step = memoryview(data), self.image.step
        while len(left):
            room = step - len(self._part)
            if room == step <= len(left):
                self.add(left[:step])
            else:
                self._part += left[:room]
                if len(self._part) == step:
                    self._flush()
            left = left[room:]

    def _flush(self) -> None:
        with memoryview(self._part) as block:
            self.add(block)
        self._part.clear()

    def add(self, block: Buffer, leaf: Digest | None = None) -> None:
        """Append a block; where its `leaf` is not known, `done` computes it."""
        self.image.write(len(self._leaves), block)
        self._leaves.append(leaf)

    def done(self) -> Blocks:
        """The version, after its last byte."""
        if self._part:
            self._flush()
        leaves = [leaf or self._leaf(number) for number, leaf in enumerate(self._leaves)]
        return Blocks(self.image, tuple(leaves), root_of(leaves), self.image.step)

    def _leaf(self, number: int) -> Digest:
        start = number * self.image.step
        return digest_of(self.image.read(start, min(start + self.image.step, self.image.size)))


class Leaves(Draft):
    """A draft of which only the leaves are kept: what they identify cannot be read."""

    def add(self, block: Buffer, leaf: Digest | None = None) -> None:
        self._leaves.append(leaf or digest_of(block))


MakeDraft: TypeAlias = Callable[[int], Draft]
"""Bytes of a version -> where it is written."""


def in_memory(size: int) -> Draft:
    return Draft(Image(size))


def only_leaves(size: int) -> Draft:
    return Leaves(Image(size))
