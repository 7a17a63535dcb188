"""A peer's records on its disk: groups, and what became of them.

    keep(record) -> one write, one fsync for all that arrived meanwhile (Kind.KEEP) -> the segment that has it

A disk that is full, fails or hangs costs the records and nothing else: `keep` says so within WITHIN seconds,
the fault is an event, and the disk is tried again after PAUSE. Bounded in bytes: beyond the limit the oldest
segment goes. Not handled here: which records there are.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TypeVar

from peers.runtime.host import Host
from swarm.protocol import Kind
from swarm.record_log import RecordLog
from swarm.types import Group, Struct, TrainedStep

T = TypeVar("T")

WITHIN = 2.0
"""Seconds that a receipt waits for the disk: an fsync takes milliseconds, and 100 on a busy spinning disk."""

PAUSE = 30.0
"""Seconds without the disk after it failed: a full one is not tried with every group."""

RECORDS = "groups"
"""What the disk is given, for who tells that it refuses."""


class Kept(Struct):
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


@dataclass
class Batch:
    """Records that are written together."""

    records: list[bytes] = field(default_factory=list)
    durable: bool = False
    segment: int | None = None
    """Where they are; None: not on the disk."""


class GroupLog:
    def __init__(self, host: Host, folder: Path | None, segment_bytes: int, most_bytes: int) -> None:
        """None keeps nothing."""
        self._host, self._most = host, most_bytes
        self._log = RecordLog(folder, segment_bytes) if folder is not None else None
        self._next, self._turn = Batch(), asyncio.Lock()
        self._paused_until = 0.0

    @property
    def takes(self) -> bool:
        """Whether a record is given to the disk now."""
        return self._log is not None and self._host.steady() >= self._paused_until

    @property
    def segments(self) -> list[int]:
        """On the disk, oldest first; the last one is written to."""
        return [*self._log.sizes] if self._log is not None else []

    async def read(self) -> list[tuple[int, bytes]]:
        """(segment, record), oldest first, as far as the disk can be read; called once, before all else."""
        found: list[tuple[int, bytes]] = []
        if self._log is not None:
            try:
                await self._host.ports.work.run(Kind.KEEP, _read, self._log, found)
            except OSError as error:
                self._failed(str(error))
        return found

    async def keep(self, record: bytes, durably: bool = True) -> int | None:
        """The segment that has the record; None where the disk does not take it. Without `durably` the record
        outlives this process, and not the machine."""
        if self._log is None or not self.takes:
            return None
        batch = self._next
        batch.records.append(record)
        batch.durable |= durably
        async with self._turn:
            if batch is self._next:
                self._next = Batch()
                await self._write(self._log, batch)
        return batch.segment

    async def remove(self, segments: Iterable[int]) -> None:
        """Remove segments of which nothing is needed; the one that is written to stays."""
        log = self._log
        if log is None:
            return
        gone = [segment for segment in segments if segment in log.sizes and segment != log.current]
        if gone:
            async with self._turn:
                await self._try(partial(_remove, log, gone))

    async def _write(self, log: RecordLog, batch: Batch) -> None:
        def write() -> int:
            segment = log.append(batch.records, batch.durable)
            while sum(log.sizes.values()) > self._most and len(log.sizes) > 1:
                log.remove(min(log.sizes))
            return segment

        batch.segment = await self._try(write)

    async def _try(self, what: Callable[[], T]) -> T | None:
        work = self._host.ports.work
        try:
            async with asyncio.timeout(WITHIN):
                done = await work.run(Kind.KEEP, what)
            self._host.disk.tell(RECORDS, "")
            return done
        except TimeoutError:
            self._failed(f"it took more than {WITHIN:g} s to write")
        except OSError as error:
            self._failed(error.strerror or str(error))
        return None

    def _failed(self, why: str) -> None:
        """Go on without the disk for a while."""
        self._paused_until = self._host.steady() + PAUSE
        self._host.disk.tell(
            RECORDS, f"groups are not kept on the disk, and are lost if this peer dies: {why}"
        )


def _read(log: RecordLog, found: list[tuple[int, bytes]]) -> None:
    """Remove segments of no whole record, too: a process or a disk ended in their first one."""
    found.extend(log.read())
    _remove(log, log.sizes.keys() - {segment for segment, _ in found})


def _remove(log: RecordLog, segments: Iterable[int]) -> None:
    for segment in segments:
        log.remove(segment)
