"""Accused groups, as their samplers signed them: served to learners, which replay them.

    here:   an accused group's frame -> held -> service `accused`: to learners that ask for its digest
    there:  asked -> digest, signature, run, sampler checked -> AccusedGroup

Frames are held in memory. Not handled here: accusations (peers.audits.accusations), replays.
"""

from __future__ import annotations

from typing import NamedTuple

from peers.audits.evidence import Unsigned, signed_group
from peers.intake.frame_shelf import FrameShelf
from peers.intake.inbox import LearnerInbox
from peers.runtime.host import Host
from swarm.core.audits.accusations import Claim
from swarm.frames import wire
from swarm.net.ports import Refused, read_question
from swarm.protocol import Role, Service
from swarm.storage.blocks import digest_of
from swarm.types import Digest, Group, PeerId, Struct

FRAMES_BYTES = 16 << 20
"""Accused groups that a peer shows, in bytes."""

ASKED = 15.0
"""Seconds for an answer of a group's size."""


class AccusedQuery(Struct, tag="accused-query"):
    """Asks a group's accuser for its frame."""

    group: Digest


class AccusedGroup(NamedTuple):
    """A group that another peer accuses, to be replayed here."""

    accuser: PeerId
    claim: Claim
    group: Group
    frame: bytes
    prompt: str


class ShownGroups:
    """Groups that this peer accuses, for others to fetch: the newest FRAMES_BYTES."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._frames = FrameShelf(FRAMES_BYTES)

    def put(self, frame: bytes) -> Digest:
        digest = digest_of(frame)
        self._frames.put(digest, frame)
        return digest

    async def serve(self) -> None:
        await self._host.ports.mail.serve(Service.ACCUSED, self._show)

    async def _show(self, sender: PeerId, question: bytes) -> bytes:
        asked = read_question(question, AccusedQuery)
        if sender not in self._host.roster.learners():
            raise Refused("only learners of this run are shown what this peer accuses")
        if not (frame := self._frames.of(asked.group)):
            raise Refused("this peer accuses no such group, or does not hold it any more")
        return frame


async def shown(host: Host, inbox: LearnerInbox, accuser: PeerId, claim: Claim) -> AccusedGroup | None:
    """An accused group, from its accuser; None where groups of this sampler are not audited here. Raises
    NetError, WireError, Unsigned, RewardError."""
    run, vocabulary = host.config.run, inbox.decoder.vocabulary
    question = wire.encode(AccusedQuery(group=claim.group))
    frame = await host.ports.mail.send(accuser, Service.ACCUSED, question, ASKED)
    if digest_of(frame) != claim.group:
        raise Unsigned("it shows another group than the one that it accuses")
    opened, group = signed_group(host.frames, frame, run, vocabulary)
    if (group.sampler, group.version, group.weights) != (claim.sampler, claim.version, claim.weights):
        raise Unsigned("the group that it shows is another sampler's, or of another version")
    if host.distrust(opened, Role.SAMPLER) is not None:
        return None
    if host.invited(opened, Role.SAMPLER) and not host.config.peer.audit.invited:
        return None
    (task,) = await inbox.reward_calls.tasks([group.task])
    return AccusedGroup(accuser, claim, group, frame, task.prompt)
