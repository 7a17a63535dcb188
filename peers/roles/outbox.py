"""A sampler's groups on its disk until a learner has them on its own: what a restart delivers again.

    add    a group, before it is sent         sent   to whom, since that learner may have it
    done   a receipt says that it is kept, or never will be
    count  how many were drawn of a release   open   what is left of the last life

A group that is delivered twice has one id: the learner that has it answers `duplicate`. Bounded: beyond the
limit the oldest are dropped from the disk. Not handled here: deliveries (peers.roles.sampler).
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from peers.roles.group_log import GroupLog
from peers.runtime.host import Host
from swarm import wire
from swarm.types import Digest, Group, PeerId

SEGMENT_BYTES = 1 << 20
"""A segment goes when all of its groups are done."""

COUNTS = 8
"""Releases whose counts outlive a life: a sampler that comes back goes on with the newest."""


class Added(msgspec.Struct, frozen=True, tag="added"):
    group: Group


class Sent(msgspec.Struct, frozen=True, tag="sent"):
    group: str
    learner: PeerId


class Done(msgspec.Struct, frozen=True, tag="done"):
    group: str


class Counted(msgspec.Struct, frozen=True, tag="counted"):
    weights: Digest
    drawn: int


class Outbox:
    def __init__(self, host: Host, folder: Path | None, most: int) -> None:
        """Room for about `most` groups of the largest size; None keeps nothing."""
        sampling = host.config.run.sampling
        largest = wire.group_limit(sampling.group_size, sampling.max_tokens, sampling.heads).inflated
        self._host = host
        self._log = GroupLog(host, folder, SEGMENT_BYTES, most * largest)
        self._segments: dict[int, set[str]] = {}
        """Segment -> the groups in it that are not done."""
        self._unsure: set[str] = set()
        """Groups that may be on the disk, which did not take them in time."""
        self._owed: dict[str, None] = {}
        """Groups that are done, and of which the disk did not take that."""
        self.drawn: dict[Digest, int] = {}
        """Weights of a release -> how many groups earlier lives drew of it, as far as the disk says."""
        self._counted: Counted | None = None
        """The last count of this life."""

    async def open(self) -> list[tuple[Group, PeerId | None]]:
        """Groups of the last life that are not done, oldest first, and the learner that may have each."""
        groups: dict[str, Group] = {}
        learners: dict[str, PeerId] = {}
        for segment, record in await self._log.read():
            try:
                match msgspec.msgpack.decode(record, type=Added | Sent | Done | Counted):
                    case Added(group):
                        groups[group.id] = group
                        self._segments.setdefault(segment, set()).add(group.id)
                        self._hear_count(group.weights, group.draw + 1)
                    case Sent(group_id, learner):
                        learners[group_id] = learner
                    case Done(group_id):
                        groups.pop(group_id, None)
                        self._forget(group_id)
                    case Counted(weights, drawn):
                        self._hear_count(weights, drawn)
            except msgspec.DecodeError as error:  # of another version of this program
                self._host.disk_damaged(f"a record of the outbox is left out: {error}")
        for weights in list(self.drawn)[:-COUNTS]:
            del self.drawn[weights]
        for weights, drawn in self.drawn.items():
            await self.count(weights, drawn)  # the segment that says so may go now
        await self._remove()
        return [(group, learners.get(group_id)) for group_id, group in groups.items()]

    async def add(self, group: Group) -> None:
        if not any(group.id in waiting for waiting in self._segments.values()):
            tried = self._log.takes
            segment = await self._log.keep(wire.encode(Added(group)))
            if segment is None and tried:
                self._unsure.add(group.id)
            if segment is not None:
                self._segments.setdefault(segment, set()).add(group.id)

    async def sent(self, group: str, learner: PeerId) -> None:
        """It goes to this learner now; only a crash of the machine may forget that."""
        await self._log.keep(wire.encode(Sent(group, learner)), durably=False)

    async def count(self, weights: Digest, drawn: int) -> None:
        """So many groups of a release are drawn: the next life goes on from there."""
        self._counted = Counted(weights, drawn)
        await self._log.keep(wire.encode(self._counted), durably=False)

    async def done(self, group: str) -> None:
        if self._forget(group) or group in self._unsure:
            self._unsure.discard(group)
            self._owed[group] = None
            for each in [*self._owed]:
                if await self._log.keep(wire.encode(Done(each)), durably=False) is None:
                    break
                self._owed.pop(each, None)
            await self._remove()

    async def _remove(self) -> None:
        """Remove segments of which nothing is needed: not those behind one that has an open group, since they
        may say whose it is and what else of that segment is done."""
        *older, _ = self._log.segments or [0]
        oldest = min((one for one in older if self._segments.get(one)), default=None)
        gone = [one for one in older if oldest is None or one < oldest]
        if gone and self._log.takes:
            for one in gone:
                self._segments.pop(one, None)
            if self._counted is not None:
                await self._log.keep(wire.encode(self._counted), durably=False)
            await self._log.remove(gone)

    def _hear_count(self, weights: Digest, drawn: int) -> None:
        self.drawn[weights] = max(drawn, self.drawn.pop(weights, 0))

    def _forget(self, group: str) -> bool:
        """Whether a segment has it as one that is not done."""
        for waiting in self._segments.values():
            if group in waiting:
                waiting.remove(group)
                return True
        return False
