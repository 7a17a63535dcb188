"""Disks of simulated peers: a folder for each, which survives the peer's restarts; full ones, damage to
files.

Files are real and small. While a world runs, the functions of `os` that write are this module's, and
swarm.storage.durable and swarm.storage.image write with these alone: writes to a full disk are refused, and
no fsync is made. Not handled here: the contents of a peer's folder (the roles), when it is damaged
(swarm.sim.world).
"""

from __future__ import annotations

import errno
import fcntl
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any

FLIPPED = 64
"""Bytes of which bits are flipped: a sector's worth of a small file."""

PLACE = 200
"""Descriptor through which temporary disks are named, above those that a simulation has open."""


@contextmanager
def temporary() -> Iterator[Path]:
    """A folder for disks that last no longer than the body, in memory where this machine has such a file
    system. Its path is the same each time, since peers print it, and a seed has one journal."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(prefix="disks-", dir=memory if memory.is_dir() else None) as folder:
        found = os.open(folder, os.O_RDONLY)
        place = fcntl.fcntl(found, fcntl.F_DUPFD_CLOEXEC, PLACE)
        os.close(found)
        try:
            yield Path(f"/proc/self/fd/{place}")
        finally:
            os.close(place)


def damage(folder: Path, pattern: str, how: str, rng: Random) -> None:
    """Damage one file below `folder` that matches, or delete all of them; nothing where none does."""
    files = sorted(path for path in folder.glob(pattern) if path.is_file())
    if how == "delete":
        for path in files:
            path.unlink()
    elif files:
        _spoil(rng.choice(files), how, rng)


def _spoil(path: Path, how: str, rng: Random) -> None:
    size = path.stat().st_size
    if how == "flip":
        start = rng.randrange(max(1, size - FLIPPED))
        with open(path, "rb+") as file:
            file.seek(start)
            bits = bytes(byte ^ 0x55 for byte in file.read(FLIPPED))
            file.seek(start)
            file.write(bits)
    else:
        os.truncate(path, 0 if how == "empty" else rng.randrange(max(1, size)))


class SimulatedDisks:
    """Folders on this machine's disk, some of which take no more."""

    def __init__(self) -> None:
        self._full: list[Path] = []
        self._write, self._pwrite, self._open, self._fsync = os.write, os.pwrite, os.open, os.fsync

    def fill(self, folder: Path, full: bool) -> None:
        """From now on this folder takes no more, or takes everything again."""
        place = folder.resolve()
        self._full = [one for one in self._full if one != place] + [place] * full

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """Full folders refuse writes. No fsync is made: a simulated crash leaves all writes, and a real one
        of this machine ends the simulation."""
        os.write, os.pwrite, os.open = self._try_write, self._try_pwrite, self._try_open  # type: ignore[assignment]
        os.fsync = _done  # type: ignore[assignment]
        try:
            yield
        finally:
            os.write, os.pwrite, os.open, os.fsync = self._write, self._pwrite, self._open, self._fsync

    def _try_write(self, descriptor: int, data: Any) -> int:
        self._check(descriptor)
        return self._write(descriptor, data)

    def _try_pwrite(self, descriptor: int, data: Any, at: int) -> int:
        self._check(descriptor)
        return self._pwrite(descriptor, data, at)

    def _try_open(self, path: Any, flags: int, *rest: Any, **more: Any) -> int:
        if self._full and flags & os.O_CREAT and not os.path.exists(path):
            self._refuse(os.fspath(path))
        return self._open(path, flags, *rest, **more)

    def _check(self, descriptor: int) -> None:
        if self._full:
            self._refuse(os.readlink(f"/proc/self/fd/{descriptor}"))

    def _refuse(self, path: str) -> None:
        if self._full and any(map(Path(path).resolve().is_relative_to, self._full)):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)


def _done(descriptor: int) -> None:
    """An fsync that is not made."""
