"""Accusations of samplers: a peer that finds a forgery announces it, and learners replay its group
themselves.

    a replay shows a forgery -> Accusation on topic `accused`, SAID times
    topic `accused` -> a new case (swarm.core.audits.accusations) -> the group, from the first of its
        accusers that serves it (peers.audits.shown_groups) -> the auditor's replays
            agreed      the sampler is suspended here, too, and this peer accuses it itself
            disagreed   Rejected event with the accuser's name
            undecided   nothing: the replay is inconclusive, or the memory is not here
            let go      nothing, for want of room, until it is repeated

Learners and auditors accuse; learners act, and all peers see that a learner suspends a sampler
(peers.runtime.watching.suspensions). Groups of samplers that this learner does not audit
(`peer.audit.invited`) are ignored, and so are those of a sampler that this learner has suspended, or of a
version that is not here: it may arrive before the accusation is repeated. Not handled here: replays
(peers.audits.auditor).
"""

from __future__ import annotations

import asyncio
from typing import Protocol

from msgspec.structs import replace

from peers.audits.evidence import Unsigned
from peers.audits.shown_groups import AccusedGroup, ShownGroups, shown
from peers.intake.inbox import LearnerInbox
from peers.runtime.frames import UnknownKey
from peers.runtime.host import Host
from peers.runtime.watching.suspensions import Accusation, unverifying
from swarm import events
from swarm.core.audits.accusations import Accusations, Claim, Opinion
from swarm.core.suspensions import Suspension
from swarm.frames import wire
from swarm.limits import RELEASE_LIMIT
from swarm.net.ports import NetError
from swarm.protocol import Service, Topic
from swarm.storage.blocks import digest_of
from swarm.tasks.base import RewardError
from swarm.types import Digest, Group, PeerId

SAID = 3
"""Times that an accusation is published: gossip loses some, and later the version is gone."""

SAID_EVERY = 20.0
"""Seconds."""


class Replays(Protocol):
    """The auditor."""

    def holds(self, version: int, weights: Digest) -> bool:
        """Whether groups of these weights can be replayed here."""
        ...

    def suspended(self, sampler: PeerId) -> Suspension | None:
        """Why a sampler is suspended here, or None."""
        ...

    def enqueue(self, shown: AccusedGroup) -> None:
        """Replay it when there is time, then call `judged`."""
        ...


class Accuser:
    """Sends one peer's accusations of samplers that cheat."""

    def __init__(self, host: Host, shown: ShownGroups) -> None:
        self._host, self._shown = host, shown
        self.tasks = asyncio.TaskGroup()
        """Of whoever runs it."""

    def accuse(self, group: Group, frame: bytes, suspension: Suspension | None = None) -> None:
        """Announce that a replay of this group shows a forgery, and the suspension of its sampler here."""
        digest = self._shown.put(frame)
        accusation = Accusation(
            sampler=group.sampler,
            group=digest,
            version=group.version,
            weights=group.weights,
            until=suspension.until if suspension is not None else 0.0,
            evidence=group.id if suspension is not None else "",
            why=suspension.why if suspension is not None else "",
        )
        self.tasks.create_task(self._publish(accusation))

    async def _publish(self, accusation: Accusation) -> None:
        host = self._host
        for _ in range(SAID):
            if len(host.roster):  # else no peer listens
                await host.ports.gossip.publish(host.topic(Topic.ACCUSED), self._sealed(accusation))
            await host.ports.clock.sleep(SAID_EVERY)

    def _sealed(self, accusation: Accusation) -> bytes:
        """With as much of the reason as fits beside a membership."""
        while accusation.why:
            try:
                return self._host.seal(accusation, RELEASE_LIMIT)
            except wire.WireError:
                accusation = replace(accusation, why=accusation.why[: len(accusation.why) // 2])
        return self._host.seal(accusation, RELEASE_LIMIT)


class AccusationExchange:
    """Sends and receives a learner's accusations of samplers that cheat."""

    def __init__(self, host: Host, inbox: LearnerInbox, replays: Replays, shown: ShownGroups) -> None:
        self._host, self._inbox, self._replays = host, inbox, replays
        self._cases = Accusations()
        self._accuser = Accuser(host, shown)

    async def run(self) -> None:
        """Receive accusations, until cancelled."""
        async with self._accuser.tasks:
            await self._host.listen(Topic.ACCUSED, self.receive)

    def accuse(self, group: Group, frame: bytes, suspension: Suspension | None) -> None:
        """As Accuser."""
        self._cases.mine(Claim(group.sampler, digest_of(frame), group.version, group.weights))
        self._accuser.accuse(group, frame, suspension)

    # --- of others ------------------------------------------------------------------------------------------

    def receive(self, sealed: bytes) -> None:
        """Receive an accusation. Raises WireError for anything but an accusation by a learner or an
        auditor."""
        host = self._host
        opened, accusation = host.read(sealed, RELEASE_LIMIT, Accusation)
        accuser = opened.sender
        if (why := unverifying(host, opened)) is not None:
            raise wire.WireError(f"accusation by {accuser}: {why}")
        host.suspensions.take(opened, accusation)
        claim = Claim(accusation.sampler, accusation.group, accusation.version, accusation.weights)
        if accuser == host.ports.me or not (self._cases.has_opinion(claim) or self._looks_at(claim)):
            return
        if (case := self._cases.record(accuser, claim, host.now())) is None:
            return
        if case.opinion is Opinion.DISAGREED:
            self._name(accuser, f"it accuses {accusation.sampler} of a group that is honest by a replay here")
        elif case.opinion is None and not case.asking:
            case.asking = True
            self._accuser.tasks.create_task(self._fetch(claim))

    def _looks_at(self, claim: Claim) -> bool:
        """Whether a new accusation may bring news, and can be replayed here."""
        replays = self._replays
        return replays.suspended(claim.sampler) is None and replays.holds(claim.version, claim.weights)

    async def _fetch(self, claim: Claim) -> None:
        """Have an accused group replayed, as whoever shows it."""
        while (accuser := self._cases.next_accuser(claim)) is not None:
            if (accused := await self._shown_by(accuser, claim)) is not None:
                return self._replays.enqueue(accused)

    async def _shown_by(self, accuser: PeerId, claim: Claim) -> AccusedGroup | None:
        try:
            accused = await shown(self._host, self._inbox, accuser, claim)
        except (NetError, UnknownKey, RewardError):
            self._cases.unheard(claim, accuser)  # it will be repeated
            return None
        except (wire.WireError, Unsigned) as error:
            self._cases.unshown(claim, accuser)
            self._name(accuser, f"it accuses {claim.sampler} without evidence: {error}")
            return None
        if accused is None:
            self._cases.unshown(claim, accuser)
        return accused

    def let_go(self, claim: Claim) -> None:
        """The group that is accused finds no room: when it is accused again it may."""
        self._cases.let_go(claim)

    def judged(self, accused: AccusedGroup, opinion: Opinion) -> None:
        """This learner's opinion of an accusation, by a replay of its own."""
        claim = accused.claim
        case = self._cases.judged(claim, opinion)
        if opinion is Opinion.DISAGREED:
            for each in sorted(case.accusers) if case is not None else (accused.accuser,):
                self._name(each, f"it accuses {claim.sampler} of a group that is honest by a replay here")

    def _name(self, accuser: PeerId, reason: str) -> None:
        host = self._host
        if (suspension := self._cases.false(accuser, reason, host.now())) is not None:
            reason += f"; its accusations are suspended for {suspension.left(host.now())}"
        host.emit(events.Rejected, sender=accuser, kind=Service.ACCUSED, reason=reason)
