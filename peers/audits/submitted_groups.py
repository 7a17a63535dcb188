"""Groups of audited samplers that a learner received: listed for auditors, which replay some of them, drawn
by
randomness of their own.

    a group is admitted -> held with its number -> service `submitted`: Submitted, groups after a number
                                                                        or a group's frame

The newest FRAMES_BYTES are held; nothing is hashed before an auditor asks. Not handled here: an auditor's
findings (peers.audits.accusations).
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Annotated

from msgspec import Meta
from msgspec.structs import replace

from peers.runtime.host import Host
from swarm.frames import wire
from swarm.net.ports import Refused, read_question
from swarm.protocol import Role, Service
from swarm.storage.blocks import digest_of
from swarm.types import Count, Digest, Group, PeerId, Struct

FRAMES_BYTES = 16 << 20
"""Groups that auditors can ask for, in bytes."""

LISTED = 32
"""Groups in an answer."""


class SubmittedQuery(Struct, tag="submitted-query"):
    """Asks a learner which groups came, or for one of them."""

    life: int
    """The learner's incarnation that the number is of."""
    after: Count
    """Number of the last group that the asker has seen."""
    group: Digest = Digest("")
    """Of its frame: asks for that; empty: for the list."""


class SubmittedGroup(Struct):
    group: Digest
    """Of the frame that its sampler signed."""
    sampler: PeerId
    version: Count
    weights: Digest
    """Of the version that the group names."""


class Submitted(Struct, tag="submitted"):
    """Groups that came to a learner, the oldest first."""

    life: int
    """The learner's incarnation."""
    last: Count
    """Number of the last one."""
    groups: Annotated[tuple[SubmittedGroup, ...], Meta(max_length=LISTED)]


@dataclass
class HeldSubmission:
    number: int
    frame: bytes
    listing: SubmittedGroup
    """Its digest is empty until it is listed."""


class SubmittedGroups:
    def __init__(self, host: Host) -> None:
        self._host = host
        self._held = deque[HeldSubmission]()
        self._bytes = self._count = 0

    async def serve(self) -> None:
        await self._host.ports.mail.serve(Service.SUBMITTED, self._answer)

    def add(self, group: Group, frame: bytes) -> None:
        self._count += 1
        self._bytes += len(frame)
        listing = SubmittedGroup(
            group=Digest(""),
            sampler=group.sampler,
            version=group.version,
            weights=group.weights,
        )
        self._held.append(HeldSubmission(self._count, frame, listing))
        while self._bytes > FRAMES_BYTES:
            self._bytes -= len(self._held.popleft().frame)

    def drop(self, sampler: PeerId) -> None:
        """Groups of a suspended sampler are not audited any more."""
        self._held = deque(one for one in self._held if one.listing.sampler != sampler)
        self._bytes = sum(len(one.frame) for one in self._held)

    async def _answer(self, sender: PeerId, question: bytes) -> bytes:
        asked = read_question(question, SubmittedQuery)
        beat = self._host.roster.beat(sender)
        if beat is None or beat.role is not Role.AUDITOR:
            raise Refused("only auditors are told which groups came")
        return self._frame(asked.group) if asked.group else wire.encode(self._list(asked))

    def _list(self, asked: SubmittedQuery) -> Submitted:
        life = self._host.who.incarnation
        after = asked.after if asked.life == life else 0
        found = [one for one in self._held if one.number > after][:LISTED]
        for one in found:
            if not one.listing.group:
                one.listing = replace(one.listing, group=digest_of(one.frame))
        last = found[-1].number if found else after
        return Submitted(life=life, last=last, groups=tuple(one.listing for one in found))

    def _frame(self, digest: Digest) -> bytes:
        for one in self._held:
            if one.listing.group == digest:
                return one.frame
        raise Refused("no such group is held here any more")
