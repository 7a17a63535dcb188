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
from pathlib import Path

from peers.errors import CannotHere
from swarm import wire
from swarm.durable import make_folder, read_checked
from swarm.protocol import Role
from swarm.run_types import Membership

MEMBERSHIP = "membership"
"""File in a peer's folder: its renewed membership."""

INCARNATION = "incarnation"
"""File in a peer's folder: the incarnation of its last start, in milliseconds, with a checksum."""

LONGEST_PID = 10
"""Digits of the highest pid that Linux gives, and a few more."""

RELEASES = "releases"
"""Folder in a peer's folder: releases as their publishers signed them, each named by the root of its
weights."""


class PeerFolder:
    """A peer's own folder. `with folder:` locks it and writes the process's pid into it for others to
    read."""

    def __init__(self, path: Path) -> None:
        self.path = path
        make_folder(path)
        self._lock = _opened(path / "pid")
        self._taken = False

    def take(self) -> bool:
        """False when another process has it."""
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        self._taken = True
        with contextlib.suppress(OSError):  # the pid is for people to read: a disk that refuses it costs that
            pid = str(os.getpid()).encode()
            os.pwrite(self._lock, pid, 0)  # over the last one: a full disk has room for that
            os.ftruncate(self._lock, len(pid))
        return True

    def __enter__(self) -> PeerFolder:
        if not self._taken and not self.take():
            owner = _pid((self.path / "pid").read_bytes()) or "that its pid file does not name"
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


def running(path: Path) -> dict[str, int]:
    """Peers of this run folder that run now: folder name -> pid, 0 where the disk does not tell it."""
    found = {}
    for file in sorted(path.glob("peers/*/pid")):
        with open(file, "rb") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                found[file.parent.name] = _pid(lock.read())
    return found


def _opened(path: Path) -> int:
    """A descriptor that can be locked, also on a file system that has become read-only."""
    try:
        return os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        if error.errno != errno.EROFS:
            raise
        return os.open(path, os.O_RDONLY)


def _pid(content: bytes) -> int:
    """What a pid file names; 0 when it names none, since a disk lost or refused it."""
    return int(content) if content.isdigit() and len(content) <= LONGEST_PID else 0


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
