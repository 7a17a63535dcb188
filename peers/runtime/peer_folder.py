"""One peer's folder: its key, journal and files, locked by one process at a time.

    <run folder>/peers/<name>/   key, incarnation, journal.jsonl, log, blobs/, releases/, checkpoint/,
                                 membership, history, pid

Not handled here: the files' contents (each role's own module), the run's folder around it
(peers.build.run_folder).
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import itertools
import os
import sys
import time
import weakref
from pathlib import Path

from peers.errors import CannotHere
from swarm.frames import wire
from swarm.frames.run_types import Membership
from swarm.membership.identity import IdentityError, keyring_of
from swarm.protocol import Role
from swarm.storage.durable import make_folder, opened, read_checked
from swarm.types import PeerId

MEMBERSHIP = "membership"
"""File in a peer's folder: its renewed membership."""

INCARNATION = "incarnation"
"""File in a peer's folder: the incarnation of its last start, in milliseconds, with a checksum."""

LONGEST_PID = 10
"""Digits of the highest pid that Linux gives, and a few more."""

TAKES, TAKE_EVERY = 100, 0.01
"""Times that a folder is tried to be taken while others look at it, and seconds between two: a look takes
microseconds."""

RELEASES = "releases"
"""Folder in a peer's folder: releases as their publishers signed them, each named by the root of its
weights."""


class Place:
    """The location of a folder while a program writes into it: it may be moved or removed meanwhile."""

    def __init__(self, folder: Path) -> None:
        """Raises OSError, but for a folder that is gone already."""
        self._folder = folder
        self._open: int | None = None
        """Held open: otherwise the next new folder could get the inode number of a removed one."""
        with contextlib.suppress(FileNotFoundError):
            self._open = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            weakref.finalize(self, os.close, self._open)

    def is_here(self) -> bool:
        """Whether it is still in its place, as far as the disk shows."""
        try:
            return self._open is not None and os.path.samestat(os.fstat(self._open), self._folder.stat())
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError:
            return True

    def check(self, whose: str, ended: str) -> None:
        """Raise CannotHere where it is not: `whose` it is, and which peers `ended` by that, for the
        message."""
        if not self.is_here():
            raise CannotHere(
                f"the folder {self._folder} was moved or removed while its {whose} ran, and {ended} ended,"
                " since another one would begin in its place. Where it was moved, move it back, or name the"
                " run folder's new place with --folder: the same command goes on from what it holds. What is"
                " at the old place by now was written meanwhile, and is of no use"
            )


class PeerFolder:
    """A peer's own folder. `with folder:` locks it and writes the process's pid into it for others to
    read."""

    def __init__(self, path: Path) -> None:
        self.path = path
        make_folder(path)
        self._lock = _opened(path / "pid")
        self._taken = False

    def take(self) -> bool:
        """False when another process has it. Waits for processes that look at it."""
        for _ in range(TAKES):
            if _locks(self._lock, fcntl.LOCK_EX):
                break
            if _is_held(self._lock):
                return False
            time.sleep(TAKE_EVERY)
        else:
            return False
        self._taken = True
        with contextlib.suppress(OSError):  # the pid is for people to read: a disk that refuses it costs that
            pid = str(os.getpid()).encode()
            # Over the last one, which a full disk has room for; the line's end is that of a shorter one.
            os.pwrite(self._lock, pid + b"\n", 0)
            os.ftruncate(self._lock, len(pid))
        return True

    def __enter__(self) -> PeerFolder:
        if not self._taken and not self.take():
            owner = _holder(self.path / "pid") or "that its pid file does not name"
            raise CannotHere(
                f"{self.path} is in use by process {owner}: `swarm leave` stops it, --folder names another"
            )
        return self

    def __exit__(self, *exit: object) -> None:
        self.release()

    def release(self) -> None:
        # The kernel frees the lock of a killed process; forked children share it, so unlock explicitly.
        fcntl.flock(self._lock, fcntl.LOCK_UN)
        self.close()

    def close(self) -> None:
        os.close(self._lock)


def free_peer_folder(path: Path, role: Role) -> PeerFolder:
    """Lock and return the first folder `<role>-<n>` that no process uses, so that a restarted peer keeps its
    identity."""
    for number in itertools.count(1):
        peer_folder = PeerFolder(path / "peers" / f"{role.value}-{number}")
        if peer_folder.take():
            return peer_folder
        peer_folder.close()
    raise AssertionError("unreachable: there is always a next number")


def peer_of(folder: Path) -> PeerId | None:
    """The peer whose folder it is; None where it has no readable key: its peer makes another one."""
    try:
        return keyring_of((folder / "key").read_bytes(), str(folder)).me
    except (OSError, IdentityError):
        return None


def running(path: Path) -> dict[str, int]:
    """Running peers of this run folder: folder name -> pid, 0 where the disk does not show it. Does not keep
    a peer from starting meanwhile."""
    found = {}
    for file in sorted(path.glob("peers/*/pid")):
        with opened(file) as lock:
            held = _is_held(lock.fileno())
        if held:
            found[file.parent.name] = _holder(file)
    return found


def _is_held(lock: int) -> bool:
    """Whether a peer has the folder. Readers share the lock for that moment."""
    if not _locks(lock, fcntl.LOCK_SH):
        return True
    fcntl.flock(lock, fcntl.LOCK_UN)  # a child that was forked meanwhile holds it too
    return False


def _locks(lock: int, how: int) -> bool:
    try:
        fcntl.flock(lock, how | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _opened(path: Path) -> int:
    """A descriptor that can be locked, also on a file system that has become read-only."""
    try:
        return os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        if error.errno != errno.EROFS:
            raise
        return os.open(path, os.O_RDONLY)


def _holder(file: Path) -> int:
    """The process that a pid file names; 0 where it names none, or one that does not have the file open: the
    last holder has not written it yet, or could not."""
    with opened(file) as named:
        pid = _pid(named.read(LONGEST_PID + 1))
    return pid if _has_open(pid, file) else 0


def _has_open(pid: int, file: Path) -> bool:
    """Whether this process has the file open; True where only the file can say so."""
    if sys.platform != "linux":
        return True
    try:
        descriptors, named = os.listdir(f"/proc/{pid}/fd"), file.stat()
    except OSError:  # it has ended, or is another user's
        return False
    for descriptor in descriptors:
        with contextlib.suppress(OSError):  # closed meanwhile
            if os.path.samestat(named, os.stat(f"/proc/{pid}/fd/{descriptor}")):
                return True
    return False


def _pid(content: bytes) -> int:
    """The pid in a pid file; 0 when there is none, since a disk lost or refused it."""
    line = content.partition(b"\n")[0]
    return int(line) if line.isdigit() and len(line) <= LONGEST_PID else 0


def membership(peer_folder: Path) -> Membership | None:
    """The membership that this peer kept in an earlier process, valid or not; None when none can be read."""
    try:
        return wire.decode((peer_folder / MEMBERSHIP).read_bytes(), Membership)
    except (OSError, wire.WireError):
        return None


def next_incarnation(peer_folder: Path, now: float) -> int:
    """The incarnation of a start at `now`, unix seconds: its milliseconds, and more than that of the last
    start, also where a clock that was ahead has been set back. Where that is not on the disk the clock
    counts."""
    try:
        last = int(read_checked(peer_folder / INCARNATION))
    except (OSError, ValueError):
        last = 0
    return max(int(1000 * now), last + 1)
