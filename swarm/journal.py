"""Journal: appends a peer's events to a file as lines of JSON, and reads them back.

    Event --to_line--> journal.jsonl --Tail, read_journal--> Event
                          | full
                       journal-000001.jsonl, journal-000002.jsonl, ...: the oldest goes where there are FILES

Invariants: a journal has at most FILES files of FILE bytes each; a line that a crash tore is cut off before
the next one is written, and is never read as an event. A follower of a journal reads every event once, though
files begin meanwhile, unless it fell behind the oldest file. The file may be emptied or removed while it is
written and followed: both continue with the next events. Not handled here: the kinds of events
(swarm.events), their display (dashboard).
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
from collections import OrderedDict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, NamedTuple

import msgspec

from swarm.events import AnyEvent, Event, Heard
from swarm.limits import UNREADABLE, remember
from swarm.protocol import Phase
from swarm.storage.durable import make_folder, opened
from swarm.types import Beat, PeerId

_BLOCK = 64 << 10
"""Bytes read at a time while looking for a journal's last whole line: many times most events."""

FILE = 16 << 20
"""Bytes of a file of a journal, about: some 40,000 events, which are read in a second."""

FILES = 16
"""Files of a journal, together 256 MiB: ten hours at a seed of six quick peers, an hour at one of 500."""

PEERS_KEPT = 4096
"""Peers whose last heartbeat is compared with the next one."""

HEARTBEATS = 2
"""One in so many heartbeats without news is kept: a dashboard that reads the journal takes a peer for silent
after three."""

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
        self._lost_its_file = False
        """While an event is written: the file had been removed, and another one begins."""
        self.refusal = ""
        """Why the disk refused the last event; empty when it took it."""
        self.lost = 0
        self.on_disk: Callable[[str], None] = _bear
        """Called with `refusal` for each event that is lost, and for the first one that is not; and once when
        the file was removed."""
        with _refusing(self):
            self._open()

    def __call__(self, event: Event) -> None:
        before, line, self._lost_its_file = self.refusal, to_line(event), False
        with _refusing(self):
            self._append(line)
        self.lost += bool(self.refusal)
        if before or self.refusal:
            self.on_disk(self.refusal)
        elif self._lost_its_file:
            self.on_disk("the file that had those so far was removed, and another one begins")
            self.on_disk("")

    def close(self) -> None:
        if self._file is not None and not self._file.closed:
            with contextlib.suppress(OSError):  # all that can be kept is on the disk
                self._mend(self._file)
                os.fsync(self._file.fileno())
            self._file.close()

    def _append(self, line: bytes) -> None:
        file = self._there()
        self._mend(file)
        self._torn = True
        if file.write(line) != len(line):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self._torn, self._size = False, self._size + len(line)
        if self._size >= FILE:
            self._begin_another(file)

    def _begin_another(self, file: IO[bytes]) -> None:
        *older, (number, _) = parts(self.path)
        for _, oldest in older[: max(0, len(older) - FILES + 2)]:
            oldest.unlink()
        os.rename(self.path, _part(self.path, number))
        self._file = None
        file.close()
        self._open()

    def _there(self) -> IO[bytes]:
        """The file, also after it was emptied or removed, to make room."""
        file = self._open()
        stat = os.fstat(file.fileno())
        if stat.st_nlink == 0:
            self._file, self._lost_its_file = None, True
            file.close()
            return self._open()
        if stat.st_size < self._size:
            self._size, self._torn = _whole_lines(file), True
        return file

    def _open(self) -> IO[bytes]:
        if self._file is None:
            make_folder(self.path.parent)
            file = open(self.path, "a+b", buffering=0)  # noqa: SIM115 (closed by close(); it lives as long as the peer)
            try:
                self._size, self._torn = _whole_lines(file), True
            except OSError:
                file.close()
                raise
            self._file = file
            self._mend(file)
        return self._file

    def _mend(self, file: IO[bytes]) -> None:
        if self._torn:
            file.truncate(min(self._size, os.fstat(file.fileno()).st_size))  # to grow it would write zeros
            self._torn = False


@contextlib.contextmanager
def _refusing(journal: Journal) -> Iterator[None]:
    """Records why the disk refuses the body's operations."""
    journal.refusal = ""
    try:
        yield
    except OSError as error:
        journal.refusal = error.strerror or str(error)


def _bear(why: str) -> None:
    """The default: reports are dropped."""


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
    except UNREADABLE as error:
        raise msgspec.DecodeError(str(error)) from error


class Damage(NamedTuple):
    """Lines of a journal that are no events: a disk lost or changed them, or another program wrote them."""

    lines: int
    """So many so far."""
    file: Path
    line: int
    """Of the first one: its file, and its number in it, from 1."""
    why: str

    def __str__(self) -> str:
        first = f"line {self.line} of {self.file} ({self.why})"
        if self.lines == 1:
            return f"1 line of the journal is not an event and is skipped: {first}"
        return f"{self.lines} lines of the journal are not events and are skipped; the first is {first}"


Damaged = Callable[[Damage], None]
"""Called with each line that is no event."""


def read_journal(path: Path, damaged: Damaged | None = None) -> Iterator[AnyEvent]:
    """Events of a journal so far, in order, older files first. A torn last line (the process was killed while
    writing) ends the reading. Without `damaged`, a line that is no event raises msgspec.DecodeError."""
    return Tail(path, damaged).news()


def parts(path: Path) -> list[tuple[int, Path]]:
    """Files of a journal with their numbers, oldest first; the last one is `path` itself, which grows."""
    pattern = re.compile(rf"{re.escape(path.stem)}-([0-9]{{6,18}}){re.escape(path.suffix)}")
    names = (pattern.fullmatch(file.name) for file in path.parent.iterdir())
    older = sorted((int(found[1]), path.with_name(found[0])) for found in names if found)
    return [*older, (older[-1][0] + 1 if older else 1, path)]


class Tail:
    """Events of a journal, which may still grow: `news` goes on where the last one ended."""

    def __init__(self, path: Path, damaged: Damaged | None = None) -> None:
        """As for `read_journal`."""
        self.path = path
        self._begin(0)
        self._damaged = damaged
        self._damage: Damage | None = None

    def _begin(self, number: int) -> None:
        self._number, self._at, self._line = number, 0, 0
        """The file that is being read, the byte in it that comes next, and the lines before that."""
        self._inode = 0
        """That file's, once it was opened."""

    def news(self) -> Iterator[AnyEvent]:
        for file, line in self._lines():
            try:
                event = from_line(line)
            except msgspec.DecodeError as error:
                self._report_damage(file, str(error))
                continue
            yield event

    def _report_damage(self, file: Path, why: str) -> None:
        if self._damaged is None:
            raise msgspec.DecodeError(f"line {self._line} of {file} is not an event: {why}")
        first = self._damage or Damage(0, file, self._line, why)
        self._damage = first._replace(lines=first.lines + 1)
        self._damaged(self._damage)

    def _lines(self) -> Iterator[tuple[Path, bytes]]:
        while self.path.parent.is_dir():
            known = parts(self.path)
            numbers = [number for number, _ in known]
            if self._number not in numbers:
                self._begin(numbers[0])
            file = known[numbers.index(self._number)][1]
            if not file.exists():
                return  # it is about to be made
            with opened(file) as lines:
                if file == self.path and _part(file, self._number).exists():
                    continue  # it has become an older one, and this is the next
                yield from ((file, line) for line in self._rest(lines))
            if file == self.path:
                return
            self._begin(self._number + 1)

    def _rest(self, lines: IO[bytes]) -> Iterator[bytes]:
        stat = os.fstat(lines.fileno())
        if stat.st_size < self._at or self._inode not in (0, stat.st_ino):
            self._begin(self._number)  # the file was emptied or removed meanwhile
        self._inode = stat.st_ino
        lines.seek(self._at)
        while line := lines.readline(FILE):
            begun, size = line, len(line)
            while not line.endswith(b"\n"):  # the last one, or one that is longer than any event
                if not (line := lines.readline(FILE)):
                    return
                size += len(line)
            self._at, self._line = self._at + size, self._line + 1
            yield begun


class Thinned:
    """A sink before a journal: of the heartbeats of a peer it lets every second one pass, and each with news:
    a start, a version, a departure."""

    def __init__(self, sink: Callable[[Event], None], apart: float = 0.0) -> None:
        """`apart`: seconds between two heartbeats without other news than a new version; 0: each version
        passes, so that a dashboard can replay when it reached each peer."""
        self._sink, self._apart = sink, apart
        self._kept: OrderedDict[PeerId, Heard] = OrderedDict()

    def __call__(self, event: Event) -> None:
        if not isinstance(event, Heard) or self._is_news(event):
            self._sink(event)

    def _is_news(self, event: Heard) -> bool:
        kept = self._kept.get(event.subject)
        if kept is not None and self._repeats(kept, event):
            return False
        remember(self._kept, event.subject, event, PEERS_KEPT)
        return True

    def _repeats(self, kept: Heard, event: Heard) -> bool:
        was, now = kept.beat, event.beat
        if _standing(was) != _standing(now):
            return False
        if self._apart:
            return event.at - kept.at < self._apart
        return _version(was) == _version(now) and now.seq - was.seq < HEARTBEATS


def _standing(beat: Beat) -> tuple[object, ...]:
    return beat.incarnation, beat.role, beat.phase is Phase.LEAVING


def _version(beat: Beat) -> tuple[object, ...]:
    return beat.version, beat.weights, beat.mirror


def _part(path: Path, number: int) -> Path:
    return path.with_name(f"{path.stem}-{number:06}{path.suffix}")


__all__ = ["Damage", "Damaged", "Journal", "Tail", "Thinned", "from_line", "parts", "read_journal", "to_line"]
