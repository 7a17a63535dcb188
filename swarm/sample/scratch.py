"""An engine's folder in the temporary folder: files that its process reads are written there.

    /tmp/swarm-hf-<host>-<pid>-<random>/    locked by its engine for as long as that lives

A file in it may be the last name of a whole model's bytes. The kernel frees the lock however an engine ends,
and the next engine of its kind removes unlocked folders. Cleaners that know such locks (systemd-tmpfiles)
leave the folder alone; after the others it is made again. Not handled here: the folder's contents.
"""

from __future__ import annotations

import contextlib
import fcntl
import glob
import os
import shutil
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

from swarm.sample.base import EngineError


class Scratch:
    """Its methods come from any thread."""

    def __init__(self, engine: str, mode: int = 0o700) -> None:
        """Removes what dead engines of that name have left. Raises OSError."""
        remove_stale(engine)
        self._mode, self._turn, self._removed = mode, threading.Lock(), False
        name = f"{_prefix(engine)}{os.getpid()}-{os.urandom(4).hex()}"
        self.path = Path(tempfile.gettempdir(), name)
        self._lock = self._made()

    def ensure(self) -> None:
        """Make the folder again where something else has removed it. Raises OSError."""
        with self._turn:
            if not self._removed and not self._is_there():
                lost, self._lock = self._lock, self._made()
                os.close(lost)

    @contextlib.contextmanager
    def writing(self) -> Iterator[None]:
        """The folder exists for the body, which may raise as in `writing`."""
        with writing(self.path):
            self.ensure()
            yield

    def remove(self) -> None:
        """For good, with all that is in it."""
        with self._turn:
            shutil.rmtree(self.path, ignore_errors=True)
            if not self._removed:
                os.close(self._lock)
            self._removed = True

    def _made(self) -> int:
        """Its descriptor. It gets its name when it is locked: before, it would count as a dead engine's.
        Another user's folder in its place is an error."""
        draft = tempfile.mkdtemp(prefix=".swarm-", dir=self.path.parent)
        held = os.open(draft, os.O_RDONLY | os.O_DIRECTORY)
        try:
            with contextlib.suppress(OSError):  # a file system without locks: it is never removed
                fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.fchmod(held, self._mode)
            os.rename(draft, self.path)
        except OSError:
            os.close(held)
            os.rmdir(draft)
            raise
        return held

    def _is_there(self) -> bool:
        try:
            return os.path.samestat(os.fstat(self._lock), os.lstat(self.path))
        except FileNotFoundError:
            return False


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """A refusal of a scratch folder's disk in the body is an EngineError: there may be room with the next
    call."""
    try:
        yield
    except OSError as error:
        raise EngineError(
            f"{path} cannot be written ({error.strerror}): make room there, or name another folder in the"
            " environment variable TMPDIR"
        ) from error


def remove_stale(engine: str) -> None:
    """Remove the folders of this machine's engines of that name that have ended without removing them."""
    for folder in glob.glob(f"{glob.escape(os.path.join(tempfile.gettempdir(), _prefix(engine)))}*"):
        with contextlib.suppress(OSError):  # its engine lives, it is another user's, or it is gone meanwhile
            _remove_unlocked(folder)


def _prefix(engine: str) -> str:
    # The host: a lock may be of no effect on another machine that shares the folder.
    return f"swarm-{engine}-{os.uname().nodename}-"


def _remove_unlocked(folder: str) -> None:
    held = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        if os.fstat(held).st_uid == os.geteuid():
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder)
    finally:
        os.close(held)
