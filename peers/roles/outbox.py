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
        self.drawn: dict[Digest, int] = {}
        """Weights of a release -> how many groups earlier lives drew of it, as far as the disk says."""
        self._counted: Counted | None = None
        """The last count of this life."""

    async def open(self) -> list[tuple[Group, PeerId | None]]:
        """Groups of the last life that are not done, oldest first, and the learner that may have each."""
        groups: dict[str, Group] = {}
        learners: dict[str, PeerId] = {}
        for segment, record in await self._log.read():
            self._segments.setdefault(segment, set())
            try:
                match msgspec.msgpack.decode(record, type=Added | Sent | Done | Counted):
                    case Added(group):
                        groups[group.id] = group
                        self._segments[segment].add(group.id)
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
        await self._log.remove([segment for segment, waiting in self._segments.items() if not waiting])
        return [(group, learners.get(group_id)) for group_id, group in groups.items()]

    async def add(self, group: Group) -> None:
        if not any(group.id in waiting for waiting in self._segments.values()):
            segment = await self._log.keep(wire.encode(Added(group)))
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
        if (segment := self._forget(group)) is not None:
            await self._log.keep(wire.encode(Done(group)), durably=False)
            if self._segments.get(segment) == set():
                del self._segments[segment]  # of two groups that are done at a time the first one removes it
                if self._counted is not None:
                    await self._log.keep(wire.encode(self._counted), durably=False)
                await self._log.remove([segment])

    def _hear_count(self, weights: Digest, drawn: int) -> None:
        self.drawn[weights] = max(drawn, self.drawn.pop(weights, 0))

    def _forget(self, group: str) -> int | None:
        """The segment that had the group."""
        for segment, waiting in self._segments.items():
            if group in waiting:
                waiting.remove(group)
                return segment
        return None
