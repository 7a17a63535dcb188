"""Groups that a verifier judged, as their samplers signed them: shown to learners, which replay them.

    here:   a judged group's frame -> held -> service `accused`: to learners that ask for its digest
    there:  asked -> digest, signature, run, sampler checked -> Shown

Frames are held in memory: of accused groups and of honest ones FRAMES_BYTES each, so that many honest ones
push no accused one out. Not handled here: what the verifier says of them (peers.audits.accusations,
peers.audits.verdicts), replays.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import NamedTuple

from peers.audits.evidence import Unsigned, signed_group
from peers.intake.inbox import LearnerInbox
from peers.runtime.host import Host
from swarm.frames import wire
from swarm.net.ports import Refused, read_question
from swarm.protocol import Role, Service
from swarm.storage.blocks import digest_of
from swarm.types import Digest, Group, PeerId, Struct

FRAMES_BYTES = 16 << 20
"""Accused groups that a verifier shows, in bytes, and honest ones."""

ASKED = 15.0
"""Seconds for an answer of a group's size."""


class AccusedQuery(Struct, tag="accused-query"):
    """Asks who judged a group for its frame."""

    group: Digest


class Verdict(NamedTuple):
    """What a verifier says of one group."""

    verifier: PeerId
    honest: bool
    """False: it accuses its sampler."""
    sampler: PeerId
    group: Digest
    """Of the frame that its sampler signed."""
    version: int
    weights: Digest
    """The version's, by what the group says."""


class Shown(NamedTuple):
    """A group that another verifier judged, to be replayed here."""

    verdict: Verdict
    group: Group
    frame: bytes
    prompt: str


class FrameShelf:
    """Frames by their digests, the newest FRAMES_BYTES."""

    def __init__(self) -> None:
        self._frames: OrderedDict[Digest, bytes] = OrderedDict()
        self._bytes = 0

    def get(self, digest: Digest) -> bytes | None:
        return self._frames.get(digest)

    def put(self, frame: bytes) -> Digest:
        digest = digest_of(frame)
        self._bytes += len(frame) - len(self._frames.get(digest, b""))
        self._frames[digest] = frame
        while self._bytes > FRAMES_BYTES:
            self._bytes -= len(self._frames.popitem(last=False)[1])
        return digest


class ShownGroups:
    """What this verifier shows."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self.accused, self.honest = FrameShelf(), FrameShelf()

    async def serve(self) -> None:
        await self._host.ports.mail.serve(Service.ACCUSED, self._show)

    async def _show(self, sender: PeerId, question: bytes) -> bytes:
        asked = read_question(question, AccusedQuery)
        if sender not in self._host.roster.learners():
            raise Refused("only learners of this run are shown what this peer judged")
        frame = self.accused.get(asked.group) or self.honest.get(asked.group)
        if frame is None:
            raise Refused("this peer judged no such group, or does not hold it any more")
        return frame


async def shown(host: Host, inbox: LearnerInbox, verdict: Verdict) -> Shown | None:
    """The group that a verdict is of, from its verifier; None where groups of this sampler are not audited
    here. Raises NetError, WireError, Unsigned, RewardError."""
    run, vocabulary = host.config.run, inbox.decoder.vocabulary
    question = wire.encode(AccusedQuery(group=verdict.group))
    frame = await host.ports.mail.send(verdict.verifier, Service.ACCUSED, question, ASKED)
    if digest_of(frame) != verdict.group:
        raise Unsigned("what it shows is not the group that it judged")
    limit = wire.group_limit(run.sampling.group_size, run.sampling.max_tokens, run.sampling.heads)
    opened, group = signed_group(host.frames, frame, limit, run, vocabulary)
    if (group.sampler, group.version, group.weights) != (verdict.sampler, verdict.version, verdict.weights):
        raise Unsigned("the group that it shows is another sampler's, or of another version")
    if host.distrust(opened, Role.SAMPLER) is not None:
        return None
    if host.invited(opened, Role.SAMPLER) and not host.config.peer.audit.invited:
        return None
    (task,) = await inbox.reward_calls.tasks([group.task])
    return Shown(verdict, group, frame, task.prompt)
