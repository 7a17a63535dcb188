"""A log of records on the disk: appended, synced in batches, read back whole after a crash, removed in
segments.

    append(records) -> one write, one fsync --> 00000007.log: (length, checksum, record) ...
    read()          <- every whole record of every segment, oldest first; a torn tail is left out

Each life of a process, and each failed write, begins a segment of its own: nothing is ever written behind a
torn record. Remains of a failed write are cut off again, where the disk allows it. Not handled here: a
record's content, and when a segment is no longer needed.
"""

from __future__ import annotations

import contextlib
import os
import re
import struct
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

from swarm.storage.durable import make_folder, sync, write_all

HEAD = struct.Struct(">II")
"""Bytes of a record, and their CRC-32."""

SUFFIX = ".log"

_NAME = re.compile(rf"([0-9]{{8}}|[1-9][0-9]{{8,17}}){re.escape(SUFFIX)}")


class RecordLog:
    """Not for two threads at once; its methods block for as long as the disk does."""

    def __init__(self, folder: Path, segment_bytes: int) -> None:
        """Segments have at least `segment_bytes`, but for the last one of each life. The folder is made by
        the first `append`."""
        self._folder, self._segment_bytes = folder, segment_bytes
        self._file: BinaryIO | None = None
        self.sizes: dict[int, int] = {}
        """Segment -> its bytes, oldest first."""

    @property
    def current(self) -> int:
        """The segment of the last record; -1 when there is none."""
        return max(self.sizes, default=-1)

    def read(self) -> Iterator[tuple[int, bytes]]:
        """(segment, record) of all that is whole; to be called before the first `append`. Raises OSError
        where the disk cannot be read."""
        names = (_NAME.fullmatch(path.name) for path in self._folder.glob(f"*{SUFFIX}"))
        numbers = sorted(int(name[1]) for name in names if name)  # other files are another program's
        self.sizes = {number: self._path(number).stat().st_size for number in numbers}
        for segment in self.sizes:
            for record in whole_records(self._path(segment).read_bytes()):
                yield segment, record

    def append(self, records: Sequence[bytes], durably: bool = True) -> int:
        """Write records behind the others, and wait until the disk has them where `durably`. Returns their
        segment. Raises OSError; then a part of them may be there all the same, where the disk refuses to cut
        it off, and whatever follows is in another segment."""
        try:
            if not self._goes_on() or self.sizes[self.current] >= self._segment_bytes:
                self._begin_segment()
            assert self._file is not None
            content = b"".join(HEAD.pack(len(each), zlib.crc32(each)) + each for each in records)
            write_all(self._file.fileno(), content)
            if durably:
                os.fsync(self._file.fileno())
            self.sizes[self.current] += len(content)
        except OSError:
            with contextlib.suppress(OSError):  # a disk that fails refuses this, too
                if self._file is not None:
                    os.ftruncate(self._file.fileno(), self.sizes[self.current])
            self.close()
            if self.sizes.get(self.current) == 0:
                with contextlib.suppress(OSError):  # a disk that fails refuses this, too
                    self.remove(self.current)
            raise
        return self.current

    def remove(self, segment: int) -> None:
        """Remove a segment that is not written to any more, if it is still there. Raises OSError."""
        self._path(segment).unlink(missing_ok=True)
        self.sizes.pop(segment, None)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def _goes_on(self) -> bool:
        """Whether the segment at hand is as it was left: another program may have removed or emptied it."""
        if self._file is None:
            return False
        stat = os.fstat(self._file.fileno())
        return stat.st_nlink > 0 and stat.st_size >= self.sizes[self.current]

    def _begin_segment(self) -> None:
        self.close()
        make_folder(self._folder)
        segment = self.current + 1
        self._file = open(self._path(segment), "xb", buffering=0)  # noqa: SIM115 (closed by close())
        self.sizes[segment] = 0
        sync(self._folder)

    def _path(self, segment: int) -> Path:
        return self._folder / f"{segment:08d}{SUFFIX}"


def whole_records(content: bytes) -> Iterator[bytes]:
    """The records at the beginning of a segment that are whole."""
    at = 0
    while at + HEAD.size <= len(content):
        length, checksum = HEAD.unpack_from(content, at)
        at += HEAD.size
        record = content[at : at + length]
        # an empty record has the head of a tail of zeros, which a crash may leave
        if not length or len(record) < length or zlib.crc32(record) != checksum:
            return
        yield record
        at += length
