"""A sampler's groups on its disk until a learner has them on its own: a restart delivers these again.

    add    a group, before it is sent         sent   to which learner, since it may have the group
    done   a receipt says that it is kept, or never will be
    count  how many were drawn of a release   open   groups left over from the last life

A group that is delivered twice has one id: the learner that has it answers `duplicate`. Bounded: beyond the
limit the oldest are dropped from the disk. Not handled here: deliveries (peers.sampler.sampler).
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

import msgspec

from peers.intake.group_log import GroupLog
from peers.runtime.host import Host
from swarm.frames import wire
from swarm.types import Digest, Group, PeerId

SEGMENT_BYTES = 1 << 20
"""A segment goes when all of its groups are done."""

COUNTS = 8
"""Releases whose counts survive a restart: a sampler that comes back continues with the newest."""


class AddedGroup(msgspec.Struct, frozen=True, tag="added"):
    group: Group


class SentGroup(msgspec.Struct, frozen=True, tag="sent"):
    group: str
    learner: PeerId


class DoneGroup(msgspec.Struct, frozen=True, tag="done"):
    group: str


class DrawnCount(msgspec.Struct, frozen=True, tag="counted"):
    weights: Digest
    drawn: int


class Outbox:
    def __init__(self, host: Host, folder: Path | None, most: int) -> None:
        """Room for about `most` groups of the largest size; None keeps nothing."""
        sampling = host.config.run.sampling
        largest = wire.group_limit(sampling.group_size, sampling.max_tokens, sampling.heads).inflated
        self._host = host
        self._log = GroupLog(host, folder, SEGMENT_BYTES, most * largest)
        self.run = self._log.run
        self._open: dict[str, int | None] = {}
        """Groups that are not done -> the segment that has each; None while the disk does not take it."""
        self.drawn: dict[Digest, int] = {}
        """Weights of a release -> groups that earlier lives drew of it, as far as the disk shows."""
        self._counted: DrawnCount | None = None
        """The last count of this life."""

    async def open(self) -> list[tuple[Group, PeerId | None]]:
        """Groups of the last life that are not done, oldest first, and the learner that may have each."""
        groups: dict[str, Group] = {}
        learners: dict[str, PeerId] = {}
        for segment, record in await self._log.read():
            try:
                match msgspec.msgpack.decode(record, type=AddedGroup | SentGroup | DoneGroup | DrawnCount):
                    case AddedGroup(group):
                        groups[group.id] = group
                        self._open[group.id] = segment
                        self._record_count(group.weights, group.draw + 1)
                    case SentGroup(group_id, learner):
                        learners[group_id] = learner
                    case DoneGroup(group_id):
                        groups.pop(group_id, None)
                        self._open.pop(group_id, None)
                    case DrawnCount(weights, drawn):
                        self._record_count(weights, drawn)
            except msgspec.DecodeError as error:  # of another version of this program
                self._host.disk.damaged(f"a record of the outbox is left out: {error}")
        for weights in list(self.drawn)[:-COUNTS]:
            del self.drawn[weights]
        for weights, drawn in self.drawn.items():
            await self.count(weights, drawn)  # the segment with the old count may go now
        await self._remove()
        return [(group, learners.get(group_id)) for group_id, group in groups.items()]

    async def add(self, group: Group) -> None:
        if group.id not in self._open:
            self._open[group.id] = None
            await self._log.keep(wire.encode(AddedGroup(group)), placed=partial(self._placed, group.id))

    def _placed(self, group: str, segment: int) -> None:
        if group in self._open:
            self._open[group] = segment

    async def sent(self, group: str, learner: PeerId) -> None:
        """It goes to this learner now; only a crash of the machine may forget that."""
        await self._log.keep(wire.encode(SentGroup(group, learner)), durably=False)

    async def count(self, weights: Digest, drawn: int) -> None:
        """So many groups of a release are drawn: the next life goes on from there."""
        self._counted = DrawnCount(weights, drawn)
        await self._log.keep(wire.encode(self._counted), durably=False)

    async def done(self, group: str) -> None:
        if group in self._open:
            del self._open[group]
            await self._log.keep(wire.encode(DoneGroup(group)), durably=False)
            await self._remove()

    async def _remove(self) -> None:
        """Remove segments that are no longer needed: not those behind one with an open group, since they may
        hold its recipients and the outcomes of that segment's other groups."""
        *older, _ = self._log.segments or [0]
        needed = {*self._open.values()}
        oldest = min((one for one in older if one in needed), default=None)
        gone = [one for one in older if oldest is None or one < oldest]
        if gone and self._log.accepts_records:
            if self._counted is not None:
                await self._log.keep(wire.encode(self._counted), durably=False)
            await self._log.remove(gone)

    def _record_count(self, weights: Digest, drawn: int) -> None:
        self.drawn[weights] = max(drawn, self.drawn.pop(weights, 0))
