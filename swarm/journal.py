"""Journal: appends a peer's events to a file as lines of JSON, and reads them back.

    Event --to_line--> journal.jsonl --read_journal--> Event

Invariant: a line that a crash tore is cut off before the next one is written, and is never read as an event.
Not handled here: the kinds of events (swarm.events), their display (dashboard).
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
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
        make_folder(path.parent)
        self.path = path
        self._file: IO[bytes] = open(path, "a+b", buffering=0)  # noqa: SIM115 (closed by close(); it lives as long as the peer)
        self._size = _whole_lines(self._file)
        self._file.truncate(self._size)
        self._torn = False
        """The file may end in a part of a line, which would run into the next event."""
        self.lost = 0

    def __call__(self, event: Event) -> None:
        line = to_line(event)
        try:
            self._mend()
            self._torn = self._file.write(line) != len(line)
        except OSError:
            self._torn = True
        if self._torn:
            self.lost += 1
        else:
            self._size += len(line)

    def close(self) -> None:
        if not self._file.closed:
            with contextlib.suppress(OSError):  # all that can be kept is on the disk
                self._mend()
                os.fsync(self._file.fileno())
            self._file.close()

    def _mend(self) -> None:
        if self._torn:
            self._file.truncate(self._size)
            self._torn = False


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
