"""Writes files durably: after a crash or a power failure the old or the new content is there, whole.

Temporary file, fsync, rename, fsync of the folder: without either fsync a crash can lose or tear the file. A
new folder is a name in its parent, which has its own fsync. Content without a digest elsewhere is written
with a checksum of its own:

    content | b"\\nblake3:" | BLAKE3 of the content, 32 bytes

Everything goes through the functions of `os`, one call a step: the tests end a writer at each.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

from blake3 import blake3

DRAFT = ".new"
"""Suffix of a file while it is written; a kill leaves it there."""

_MARK = b"\nblake3:"
_CHECKSUM = len(_MARK) + 32
"""Bytes of a checksum at the end of a file."""

_LOCKLESS = (errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK)
"""Errors of a file system without locks, as on some clusters."""


class Torn(ValueError):
    """A file is damaged; the message says which one."""


def write_durably(path: Path, *content: bytes | memoryview, mode: int = 0o644) -> None:
    """Replace the file `path` by the parts of `content`, with the permissions `mode` (0600 for secrets).

    Raises OSError; the old content is still there then.
    """
    with _draft(path, mode) as (_, file):
        for part in content:
            write_all(file, part)
        os.fsync(file)


def copy_durably(source: Path, path: Path) -> None:
    """Replace the file `path` by a copy of `source`. Raises OSError; the old content is still there then."""
    with _draft(path) as (draft, _):
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


def opened(path: Path) -> BinaryIO:
    """A file, to be read. Raises OSError, at once for a pipe, a socket or a device in its place too: to open
    one may wait for ever, to read one may never end."""
    file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        mode = os.fstat(file).st_mode
        if not stat.S_ISREG(mode):
            number = errno.EISDIR if stat.S_ISDIR(mode) else errno.ESPIPE
            raise OSError(number, os.strerror(number), str(path))
        return os.fdopen(file, "rb")
    except OSError:
        os.close(file)
        raise


def read_checked(path: Path) -> bytes:
    """The content of a file of `write_checked`; all of one that has no checksum, as older programs wrote it.

    Raises Torn when it is damaged, OSError.
    """
    with opened(path) as file:
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
def _draft(path: Path, mode: int = 0o666) -> Iterator[tuple[Path, int]]:
    """The name under which the next content of `path` is written and synced, and that file, which is empty;
    then it takes its place. Each writer waits for the one before: all use one name, so that a dead writer
    leaves no other file."""
    make_folder(path.parent)
    draft = path.with_name(path.name + DRAFT)
    try:
        with _held(draft, mode) as file:
            try:
                if os.fstat(file).st_size:
                    os.ftruncate(file, 0)  # of a writer that died
                yield draft, file
                os.rename(draft, path)
            except OSError:
                with contextlib.suppress(OSError):  # a disk that fails refuses this, too
                    draft.unlink(missing_ok=True)
                raise
            sync(path.parent)
    except OSError as error:
        # A failing write names no file, and a person wants to know which disk is full.
        error.filename = error.filename or str(path)
        raise


@contextlib.contextmanager
def _held(draft: Path, mode: int) -> Iterator[int]:
    """This file, which is made, while no other writer has it: the previous one renamed or removed it."""
    while True:
        file = os.open(draft, os.O_WRONLY | os.O_CREAT, mode)
        try:
            with _alone(file, needed=False):
                if _is_at(file, draft):
                    yield file
                    return
        finally:
            os.close(file)


def _is_at(file: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(file), os.stat(path))
    except FileNotFoundError:
        return False


@contextlib.contextmanager
def _alone(file: int, needed: bool = True) -> Iterator[None]:
    """While no other process locks this file. Raises OSError; not for a file system without locks unless
    they are `needed`."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX)
    except OSError as error:
        if needed or error.errno not in _LOCKLESS:
            raise
        yield
        return
    try:
        yield
    finally:
        fcntl.flock(file, fcntl.LOCK_UN)  # a child that was forked meanwhile holds it too


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """While no other process is in the same lock, a file of nothing that is made. Raises OSError."""
    file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        with _alone(file):
            yield
    finally:
        os.close(file)


@contextlib.contextmanager
def adding_lines(path: Path) -> Iterator[Callable[[bytes], None]]:
    """Add lines to a file that its owner alone can read, while no other process does so; each is on the disk
    when the call returns. Raises OSError."""
    file = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600)

    def add(line: bytes) -> None:
        write_all(file, line + b"\n")
        os.fsync(file)

    try:
        with _alone(file):
            size = os.fstat(file).st_size
            if size and os.pread(file, 1, size - 1) != b"\n":
                write_all(file, b"\n")  # after a line that a crash cut off
            yield add
    finally:
        os.close(file)
