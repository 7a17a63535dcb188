"""Journal: appends a peer's events to a file as lines of JSON, and reads them back.

    Event --to_line--> journal.jsonl --read_journal--> Event

Invariant: a line that a crash tore is cut off before the next one is written, and is never read as an event.
Not handled here: the kinds of events (swarm.events), their display (dashboard).
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

import msgspec

from swarm.durable import make_folder
from swarm.events import AnyEvent, Event

_BLOCK = 64 << 10
"""Bytes read at a time while looking for a journal's last whole line: many times the longest event."""

_json = msgspec.json.Encoder()
_decoder: msgspec.json.Decoder[AnyEvent] = msgspec.json.Decoder(AnyEvent)


class Journal:
    """A sink that appends events to a file, one JSON object a line, flushed after each: a crash loses no
    whole event.

    A disk that is full or fails loses events and does not stop the peer; `lost` counts them.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: IO[bytes] | None = None
        self._size = 0
        self._torn = False
        """The file may end in a part of a line, which would run into the next event."""
        self.refusal = ""
        """Why the disk refused the last event; empty when it took it."""
        self.lost = 0
        self.on_disk: Callable[[str], None] = _bear
        """Hears `refusal` with each event that is lost, and the first time that one is not."""
        with _refusing(self):
            self._open()

    def __call__(self, event: Event) -> None:
        before, line = self.refusal, to_line(event)
        with _refusing(self):
            self._append(line)
        self.lost += bool(self.refusal)
        if before or self.refusal:
            self.on_disk(self.refusal)

    def close(self) -> None:
        if self._file is not None and not self._file.closed:
            with contextlib.suppress(OSError):  # all that can be kept is on the disk
                self._mend(self._file)
                os.fsync(self._file.fileno())
            self._file.close()

    def _append(self, line: bytes) -> None:
        file = self._open()
        self._mend(file)
        self._torn = True
        if file.write(line) != len(line):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self._torn, self._size = False, self._size + len(line)

    def _open(self) -> IO[bytes]:
        if self._file is None:
            make_folder(self.path.parent)
            self._file = open(self.path, "a+b", buffering=0)  # noqa: SIM115 (closed by close(); it lives as long as the peer)
            self._size, self._torn = _whole_lines(self._file), True
            self._mend(self._file)
        return self._file

    def _mend(self, file: IO[bytes]) -> None:
        if self._torn:
            file.truncate(self._size)
            self._torn = False


@contextlib.contextmanager
def _refusing(journal: Journal) -> Iterator[None]:
    """Keeps why the disk refuses what is done in the body."""
    journal.refusal = ""
    try:
        yield
    except OSError as error:
        journal.refusal = error.strerror or str(error)


def _bear(why: str) -> None:
    """Nobody asked for reports."""


def _whole_lines(file: IO[bytes]) -> int:
    """Bytes up to the end of the last whole line; a killed writer may have left a part of one after it."""
    end = file.seek(0, os.SEEK_END)
    while end > 0:
        start = max(0, end - _BLOCK)
        file.seek(start)
        found = file.read(end - start).rfind(b"\n")
        if found >= 0:
            return start + found + 1
        end = start
    return 0


def to_line(event: Event) -> bytes:
    """One event as a line of JSON."""
    return _json.encode(event) + b"\n"


def from_line(line: bytes) -> AnyEvent:
    """The event of a line. Raises msgspec.DecodeError for a line that is no event."""
    try:
        return _decoder.decode(line)
    except (UnicodeDecodeError, RecursionError) as error:  # msgspec lets Python's own through
        raise msgspec.DecodeError(str(error)) from error


def read_journal(path: Path) -> Iterator[AnyEvent]:
    """Events of a journal in order. A torn last line (the process was killed while writing) ends the
    reading."""
    with open(path, "rb") as file:
        for line in file:
            if not line.endswith(b"\n"):
                return
            yield from_line(line)


__all__ = ["Journal", "from_line", "read_journal", "to_line"]
