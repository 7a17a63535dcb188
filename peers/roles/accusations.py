"""Accusations between learners: who set a sampler aside says so, and the others replay its group themselves.

    my replay shows a forgery -> Accusation on topic `accused`, SAID times
    topic `accused` -> a new case (swarm.core.accusations) -> service `accused` of its accuser: the group, as
        its sampler signed it -> the auditor's replays
            agreed      the sampler is set aside here, too, and this peer accuses it itself: so who was first
                        hears that there is a second one
            disagreed   Rejected event with the accuser's name
            undecided   nothing: the version or the memory is not here

Groups of samplers that this learner does not audit (`peer.audit.invited`) are not looked at. Accusations and
their groups are held in memory, FRAMES_BYTES at most. Not handled here: replays (peers.roles.auditor).
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from typing import NamedTuple, Protocol

from peers.roles.evidence import Unsigned, signed_group
from peers.roles.learner_inbox import LearnerInbox
from peers.runtime.frames import UnknownKey
from peers.runtime.host import Host
from swarm import events, wire
from swarm.blocks import digest_of
from swarm.core.accusations import Accusations, Opinion
from swarm.limits import RELEASE_LIMIT
from swarm.net.ports import NetError, Refused, read_question
from swarm.protocol import Role, Service, Topic
from swarm.tasks.base import RewardError
from swarm.types import Count, Digest, Group, PeerId, Struct

FRAMES_BYTES = 16 << 20
"""Groups that this learner accuses, in bytes."""

SAID = 3
"""Times that an accusation is published: gossip loses some, and later the version is gone."""

SAID_EVERY = 20.0
"""Seconds."""

ASKED = 15.0
"""Seconds for an answer of a group's size."""


class Accusation(Struct, tag="accusation"):
    """A learner replayed a group of a sampler, and set it aside."""

    sampler: PeerId
    group: Digest
    """Of the frame that its sampler signed."""
    version: Count
    weights: Digest
    """The version's, by what the group says."""


class AccusedQuery(Struct, tag="accused-query"):
    """Asks who accuses a sampler for the frame of the group."""

    group: Digest


class Accused(NamedTuple):
    """An accused group that is to be replayed."""

    accuser: PeerId
    digest: Digest
    group: Group
    frame: bytes
    prompt: str


class Replays(Protocol):
    """The auditor."""

    def holds(self, version: int, weights: Digest) -> bool:
        """Whether groups of these weights can be replayed here."""
        ...

    def enqueue(self, accused: Accused) -> None:
        """Replay it when there is time, then call `judged`."""
        ...

    def second(self, sampler: PeerId, strikes: int, by: PeerId) -> None:
        """Another learner agrees with this one."""
        ...


class AccusationExchange:
    """What one learner says, and hears, of samplers that cheat."""

    def __init__(self, host: Host, inbox: LearnerInbox, replays: Replays) -> None:
        self._host, self._inbox, self._replays = host, inbox, replays
        run = host.config.run.sampling
        self._limit = wire.group_limit(run.group_size, run.max_tokens, run.heads)
        self._cases = Accusations()
        self._frames: OrderedDict[Digest, bytes] = OrderedDict()
        self._frames_bytes = 0
        self._tasks = asyncio.TaskGroup()

    async def run(self) -> None:
        """Answer and hear, until cancelled."""
        host = self._host
        async with self._tasks:
            await host.ports.mail.serve(Service.ACCUSED, self._show)
            await host.listen(Topic.ACCUSED, self.hear)

    # --- mine -----------------------------------------------------------------------------------------------

    def accuse(self, group: Group, frame: bytes, strikes: int) -> None:
        """Tell the others that a replay of this group shows a forgery, by this learner's count its sampler's
        `strikes`th."""
        digest = digest_of(frame)
        self._cases.mine(digest, strikes)
        self._frames_bytes += len(frame) - len(self._frames.get(digest, b""))
        self._frames[digest] = frame
        while self._frames_bytes > FRAMES_BYTES:
            self._frames_bytes -= len(self._frames.popitem(last=False)[1])
        said = Accusation(sampler=group.sampler, group=digest, version=group.version, weights=group.weights)
        self._tasks.create_task(self._say(said))

    async def _say(self, said: Accusation) -> None:
        host = self._host
        for _ in range(SAID):
            if {*host.roster.learners()} - {host.ports.me}:  # else nobody listens
                await host.ports.gossip.publish(host.topic(Topic.ACCUSED), host.seal(said, RELEASE_LIMIT))
            await host.ports.clock.sleep(SAID_EVERY)

    async def _show(self, sender: PeerId, question: bytes) -> bytes:
        asked = read_question(question, AccusedQuery)
        if sender not in self._host.roster.learners():
            raise Refused("only learners of this run are shown whom this one accuses")
        if (frame := self._frames.get(asked.group)) is None:
            raise Refused("this learner accuses nobody of such a group, or not any more")
        return frame

    # --- of others ------------------------------------------------------------------------------------------

    def hear(self, sealed: bytes) -> None:
        """Raises WireError for what is no accusation by a learner."""
        host = self._host
        opened, said = host.read(sealed, RELEASE_LIMIT, Accusation)
        accuser = opened.sender
        if (why := host.distrust(opened, Role.LEARNER)) is not None:
            raise wire.WireError(f"accusation by {accuser}: {why}")
        if accuser == host.ports.me or (case := self._cases.heard(accuser, said.group, host.now())) is None:
            return
        if case.opinion is Opinion.AGREED:
            self._replays.second(said.sampler, case.strikes, accuser)
        elif case.opinion is Opinion.DISAGREED:
            self._name(accuser, f"it accuses {said.sampler} of a group that is honest by a replay here")
        elif case.opinion is None and len(case.accusers) == 1:
            if self._replays.holds(said.version, said.weights):
                self._tasks.create_task(self._fetch(accuser, said))
            else:
                self._cases.judged(said.group, Opinion.UNDECIDED)

    async def _fetch(self, accuser: PeerId, said: Accusation) -> None:
        """Have an accused group replayed."""
        try:
            accused = await self._accused(accuser, said)
        except (NetError, UnknownKey, RewardError):
            self._cases.forget(said.group)  # it is said again
        except (wire.WireError, Unsigned) as error:
            self._cases.judged(said.group, Opinion.UNDECIDED)
            self._name(accuser, f"it accuses {said.sampler} without evidence: {error}")
        else:
            if accused is not None:
                self._replays.enqueue(accused)
            else:
                self._cases.judged(said.group, Opinion.UNDECIDED)

    async def _accused(self, accuser: PeerId, said: Accusation) -> Accused | None:
        """None where groups of this sampler are not audited here. Raises NetError, WireError, Unsigned,
        RewardError."""
        host, run = self._host, self._host.config.run
        question = wire.encode(AccusedQuery(group=said.group))
        frame = await host.ports.mail.send(accuser, Service.ACCUSED, question, ASKED)
        if digest_of(frame) != said.group:
            raise Unsigned("what it shows is not the group that it accuses")
        vocabulary = self._inbox.decoder.vocabulary
        opened, group = signed_group(host.frames, frame, self._limit, run.sampling, vocabulary)
        if (group.sampler, group.version, group.weights) != (said.sampler, said.version, said.weights):
            raise Unsigned("the group that it shows is another sampler's, or of another version")
        if host.distrust(opened, Role.SAMPLER) is not None:
            return None
        if host.invited(opened, Role.SAMPLER) and not host.config.peer.audit.invited:
            return None
        (task,) = await self._inbox.reward_calls.tasks([group.task])
        return Accused(accuser, said.group, group, frame, task.prompt)

    def judged(self, accused: Accused, opinion: Opinion) -> None:
        """What this learner thinks of an accusation, by a replay of its own."""
        case = self._cases.judged(accused.digest, opinion)
        if opinion is Opinion.DISAGREED:
            for each in sorted(case.accusers) if case is not None else (accused.accuser,):
                self._name(
                    each, f"it accuses {accused.group.sampler} of a group that is honest by a replay here"
                )

    def _name(self, accuser: PeerId, reason: str) -> None:
        host = self._host
        if self._cases.false(accuser, host.now()):
            reason += ", and no other accusation of it is looked at for a while"
        host.emit(events.Rejected, sender=accuser, kind=Service.ACCUSED, reason=reason)
