"""A peer's records on its disk: groups, and their outcomes.

    keep(record) -> one write, one fsync for all that arrived meanwhile (Kind.KEEP)
    run          -> records that the disk refused, in order, as soon as it accepts them

A disk that is full, fails or hangs costs time and nothing else: `keep` returns within a few seconds, the
fault is an event, and the record waits in memory, in front of all later ones. Recovery is reported once the
disk has them all. Bounded in bytes, here and on the disk: beyond the limits the oldest go. Not handled here:
the kinds of records.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

from peers.runtime.host import Host
from swarm.protocol import Kind
from swarm.storage.record_log import RecordLog
from swarm.types import Group, Struct, TrainedStep

T = TypeVar("T")

WITHIN = 2.0
"""Seconds that a receipt waits for the disk: an fsync takes milliseconds, and 100 on a busy spinning disk."""

PAUSE = 1.0
"""Seconds without the disk after it refused twice: a full disk is not tried with every group. A crash after
the disk recovered loses the records of these seconds."""

TRIES = 2
"""Of one write: most errors that come alone are over at once."""

AT_ONCE = 1 << 20
"""Bytes of refused records that are written at once: an fsync of them takes less than WITHIN."""

OWED_BYTES = 32 << 20
"""Bytes that wait for a disk that refuses: a minute of groups of some hundred kilobytes each."""


class KeptGroup(Struct):
    """An admitted group as the disk has it."""

    admitted: float
    rewards: tuple[float, ...]
    """As the learner computed them."""
    group: Group


class KeptStep(Struct):
    """A step as the disk has it."""

    step: TrainedStep
    follows: bool
    """It goes on from the step before, which made its parent."""


@dataclass(eq=False)
class PendingRecord:
    """A record that is to be written."""

    record: bytes
    durable: bool
    placed: Callable[[int], None]
    written: bool = False


class GroupLog:
    def __init__(
        self,
        host: Host,
        folder: Path | None,
        segment_bytes: int,
        most_bytes: int,
        what: str = "groups",
        after: GroupLog | None = None,
    ) -> None:
        """None keeps nothing. `what` names the records in fault events. Nothing is written while `after` has
        records that its disk refused."""
        self._host, self._most, self._records, self._after = host, most_bytes, what, after
        self._log = RecordLog(folder, segment_bytes) if folder is not None else None
        self._owed, self._owed_bytes = deque[PendingRecord](), 0
        """Oldest first."""
        self._turn, self._refused = asyncio.Lock(), asyncio.Event()
        self._paused_until = 0.0

    @property
    def accepts_records(self) -> bool:
        """Whether a record is given to the disk now."""
        return self._log is not None and self._host.steady() >= self._paused_until

    @property
    def refused(self) -> bool:
        """Whether the disk refused the last write."""
        return self._log is not None and not self.accepts_records

    @property
    def owes(self) -> bool:
        """Whether records wait for the disk."""
        return bool(self._owed)

    @property
    def segments(self) -> list[int]:
        """On the disk, oldest first; the last one is written to."""
        return [*self._log.sizes] if self._log is not None else []

    async def read(self) -> list[tuple[int, bytes]]:
        """(segment, record), oldest first, as far as the disk can be read; called once, before all else. A
        write that failed or took too long may have come through: then its records are there twice."""
        found: list[tuple[int, bytes]] = []
        if self._log is not None:
            try:
                await self._host.ports.work.run(Kind.KEEP, _read, self._log, found)
            except OSError as error:
                self._failed(str(error))
        return found

    async def keep(
        self, record: bytes, durably: bool = True, placed: Callable[[int], None] = lambda _: None
    ) -> bool:
        """Whether the disk has the record now; `placed` is called with its segment, now or later. Without
        `durably` it survives a crash of this process, but not of the machine."""
        if self._log is None:
            return False
        entry = PendingRecord(record, durably, placed)
        self._owed.append(entry)
        self._owed_bytes += len(record)
        while self._owed_bytes > OWED_BYTES:
            self._pop()
        if self.accepts_records:
            async with self._turn:
                if self.accepts_records and not entry.written:
                    await self._write(self._log)
        return entry.written

    async def remove(self, segments: Iterable[int]) -> None:
        """Remove segments that are no longer needed; the current one stays."""
        log = self._log
        if log is None:
            return
        gone = [segment for segment in segments if segment in log.sizes and segment != log.current]
        if gone:
            async with self._turn:
                if await self._try(partial(_remove, log, gone)) is not None:
                    self._report_recovered()

    async def run(self) -> None:
        """Write refused records as soon as the disk accepts them, until cancelled."""
        while True:
            await self._refused.wait()
            self._refused.clear()
            await self._host.ports.clock.sleep(max(0.0, self._paused_until - self._host.steady()))
            if self._log is not None:
                async with self._turn:
                    await self._write(self._log)

    async def _write(self, log: RecordLog) -> None:
        """Write what waits, as much of it as the disk takes."""
        while self._owed:
            if self._after is not None and self._after.owes:
                self._pause()
                return
            entries = self._first()
            segment = await self._try(partial(self._append, log, entries))
            if segment is None:
                return
            for entry in entries:
                entry.written = True
                entry.placed(segment)
            while self._owed and self._owed[0].written:
                self._pop()
        self._report_recovered()

    def _first(self) -> list[PendingRecord]:
        """The oldest that wait, AT_ONCE bytes of them or one."""
        found, size = list[PendingRecord](), 0
        for entry in self._owed:
            size += len(entry.record)
            if found and size > AT_ONCE:
                break
            found.append(entry)
        return found

    def _pop(self) -> None:
        self._owed_bytes -= len(self._owed.popleft().record)

    def _append(self, log: RecordLog, entries: Sequence[PendingRecord]) -> int:
        segment = log.append([entry.record for entry in entries], any(entry.durable for entry in entries))
        while sum(log.sizes.values()) > self._most and len(log.sizes) > 1:
            log.remove(min(log.sizes))
        return segment

    async def _try(self, what: Callable[[], T]) -> T | None:
        work = self._host.ports.work
        for _ in range(TRIES):
            try:
                async with asyncio.timeout(WITHIN):
                    return await work.run(Kind.KEEP, what)
            except TimeoutError:
                self._failed(f"it took more than {WITHIN:g} s to write")
                return None
            except OSError as error:
                why = error.strerror or str(error)
        self._failed(why)
        return None

    def _failed(self, why: str) -> None:
        """Go on without the disk for a while."""
        self._pause()
        self._host.disk.report(
            self._records,
            f"{self._records} are not kept on the disk, and are lost if this peer dies before it takes"
            f" them: {why}",
        )

    def _pause(self) -> None:
        self._paused_until = self._host.steady() + PAUSE
        self._refused.set()

    def _report_recovered(self) -> None:
        """Report recovery: the disk accepts writes, and has all refused records."""
        if not self._owed:
            self._host.disk.report(self._records, "")


def _read(log: RecordLog, found: list[tuple[int, bytes]]) -> None:
    """Remove segments of no whole record, too: a process or a disk ended in their first one."""
    found.extend(log.read())
    _remove(log, log.sizes.keys() - {segment for segment, _ in found})


def _remove(log: RecordLog, segments: Iterable[int]) -> int:
    """Returns how many segments are left."""
    for segment in segments:
        log.remove(segment)
    return len(log.sizes)
