"""Writes files durably: after a crash or a power failure the old or the new content is there, whole.

Temporary file, fsync, rename, fsync of the folder: without either fsync a crash can lose or tear the file. A
folder that is made is a name in its parent, which has its own fsync. What no digest elsewhere vouches for is
written with a checksum of its own:

    content | b"\\nblake3:" | BLAKE3 of the content, 32 bytes

Everything goes through the functions of `os`, one call a step: the tests end a writer at each.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

from blake3 import blake3

DRAFT = ".new"
"""What the name of a file ends with while it is written; a kill leaves it there."""

_MARK = b"\nblake3:"
_CHECKSUM = len(_MARK) + 32
"""Bytes of a checksum at the end of a file."""


class Torn(ValueError):
    """A file is not what was written; the message says which one."""


def write_durably(path: Path, *content: bytes | memoryview, mode: int = 0o644) -> None:
    """Replace the file `path` by the parts of `content`, with the permissions `mode` (0600 for secrets).

    Raises OSError; the old content is still there then.
    """
    with _draft(path) as draft:
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
        try:
            for part in content:
                write_all(descriptor, part)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def copy_durably(source: Path, path: Path) -> None:
    """Replace the file `path` by a copy of `source`. Raises OSError; the old content is still there then."""
    with _draft(path) as draft:
        shutil.copyfile(source, draft)
        sync(draft)


def write_checked(path: Path, *content: bytes | memoryview, mode: int = 0o644) -> None:
    """Replace the file `path` by the parts of `content` and their checksum; `mode` as in write_durably.

    Raises OSError; the old content is still there then.
    """
    checksum = blake3()
    for part in content:
        checksum.update(part)
    write_durably(path, *content, _MARK, checksum.digest(), mode=mode)


def read_checked(path: Path) -> bytes:
    """The content of a file of `write_checked`; all of one that has no checksum, as older programs wrote it.

    Raises Torn when it is not what was written, OSError.
    """
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        content = file.read(max(0, size - _CHECKSUM))
        end = file.read()
    if not end.startswith(_MARK):
        return content + end
    if blake3(content).digest() != end[len(_MARK) :]:
        raise Torn(f"{path} is damaged: its checksum is not that of its content")
    return content


def make_folder(path: Path, mode: int = 0o777) -> None:
    """Make a folder with the permissions `mode`, and the parents that it lacks, each of them durably. Raises
    OSError."""
    if not path.is_dir():
        make_folder(path.parent)
        path.mkdir(mode, exist_ok=True)
        sync(path.parent)


def sync(path: Path) -> None:
    """fsync a file's content, or the renames inside a folder."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_all(descriptor: int, data: bytes | memoryview) -> None:
    """Write all of `data`, however few bytes the disk takes at a time. Raises OSError."""
    left = memoryview(data).cast("B")
    while len(left):
        left = left[os.write(descriptor, left) :]


@contextlib.contextmanager
def _draft(path: Path) -> Iterator[Path]:
    """The name under which the next content of `path` is written and synced; then it takes its place."""
    make_folder(path.parent)
    draft = path.with_name(path.name + DRAFT)
    try:
        yield draft
        os.rename(draft, path)
        sync(path.parent)
    except OSError as error:
        with contextlib.suppress(OSError):  # a disk that fails refuses this, too
            draft.unlink(missing_ok=True)
        # A failing write names no file, and a person wants to know which disk is full.
        error.filename = error.filename or str(path)
        raise


@contextlib.contextmanager
def adding_lines(path: Path) -> Iterator[Callable[[bytes], None]]:
    """Add lines to a file that its owner alone can read, while no other process does so; each is on the disk
    when the call returns. Raises OSError."""
    file = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600)

    def add(line: bytes) -> None:
        write_all(file, line + b"\n")
        os.fsync(file)

    try:
        fcntl.flock(file, fcntl.LOCK_EX)
        size = os.fstat(file).st_size
        if size and os.pread(file, 1, size - 1) != b"\n":
            write_all(file, b"\n")  # after a line that a crash cut off
        yield add
    finally:
        fcntl.flock(file, fcntl.LOCK_UN)  # a child that was forked meanwhile holds it too
        os.close(file)
