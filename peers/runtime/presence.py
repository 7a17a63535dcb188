"""Presence: other peers' heartbeats fill the roster; a peer that is silent for longer than the run's patience
is lost.

    topics `beat`, `beat/sampler` -> trust -> IdentityCheck, RevocationExchange, Roster, releases
    roster -- too long silent --> Lost event
    learners, seeds, evaluators -- heartbeat, newest release they hold --> board --> peers without a learner

Gossip reaches peers that are in the swarm; the board, those that are about to be. Not handled here: this
peer's own heartbeats (peers.runtime.heartbeats), the use of a release (peers.runtime.releases.exchange).
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from peers.runtime.heartbeats import Heartbeats, Met
from peers.runtime.kernel import Kernel
from peers.runtime.membership.identity_check import IdentityCheck
from peers.runtime.membership.revocations import RevocationExchange
from peers.runtime.releases.exchange import ReleaseExchange
from peers.runtime.run_end import RunEnd
from peers.runtime.watching.clock_check import ClockCheck
from swarm import events
from swarm.frames import wire
from swarm.limits import BEAT_LIMIT, RECORD_LIMIT, RECORD_SECONDS
from swarm.protocol import ROLES, Key, Phase, Role, Topic
from swarm.types import Beat, PeerId

LATER = 0.1
"""Seconds beyond its patience after which a peer is lost: two readings of a clock differ, and reported
silences, in tenths, are to exceed the patience."""


Take = Callable[[Callable[[bytes], object], str, PeerId, bytes], None]
"""(receiver of a message, its kind, its sender, the message): Host.take."""


class Presence:
    """One peer's view of the others."""

    def __init__(
        self,
        kernel: Kernel,
        releases: ReleaseExchange,
        revocations: RevocationExchange,
        identity: IdentityCheck,
        end: RunEnd,
        met: Met,
    ) -> None:
        """`met` is called with each heartbeat that counts."""
        self._kernel, self._releases, self._revocations = kernel, releases, revocations
        self._identity, self._end, self._met = identity, end, met
        self._clock_check = ClockCheck(kernel)

    def handlers(self) -> dict[Topic, Callable[[bytes], object]]:
        return {Topic.BEAT: self.receive, Topic.BEAT_SAMPLER: self.receive}

    def receive(self, data: bytes) -> None:
        """Take a sealed heartbeat. Raises WireError where it is none, and Refusal where a newer process has
        this peer's key."""
        kernel = self._kernel
        opened, beat = kernel.read(data, BEAT_LIMIT, Beat)
        if (why := kernel.distrust(opened, beat.role)) is not None:
            raise wire.WireError(f"heartbeat of {opened.sender}: {why}")
        invited = kernel.invited(opened, beat.role)
        if beat.mirror >= 0 and not invited:  # a mirror is asked first, so it can delay all peers
            beat = msgspec.structs.replace(beat, mirror=-1)
        self._identity.receive(opened.sender, beat, data)
        if proven := invited or kernel.has_delivered(opened.sender):
            self._revocations.note_claim(opened.sender, beat.revoked)
        before, now = kernel.roster.beat(opened.sender), kernel.now()
        if opened.sender == kernel.ports.me or not kernel.roster.receive(opened.sender, beat, now, proven):
            return
        if before is None or (before.version, before.weights) != (beat.version, beat.weights):
            self._releases.found(beat.version, beat.weights, opened.sender if invited else None)
        self._releases.agreement.receive(opened.sender, beat)
        self._met(opened.sender, beat)
        if kernel.who.observes:
            kernel.emit(events.Heard, subject=opened.sender, beat=beat, invited=invited)
        if beat.phase is Phase.LEAVING:
            kernel.roster.forget(opened.sender)
        if beat.role is Role.SEED and beat.phase is Phase.COMPLETE:
            self._end.called(opened.sender)
        self._end.look()
        kernel.move()

    async def run(self) -> None:
        kernel = self._kernel
        look = kernel.config.run.pace.patience / 4
        while True:
            self._clock_check.look()
            lost, until = kernel.roster.expire(kernel.now())
            for peer, silent in lost:
                kernel.emit(events.Lost, subject=peer, silent=round(silent, 1))
                kernel.move()
            self._end.look()
            await kernel.ports.clock.sleep(min(look, until - kernel.now() + LATER))


class Postings:
    """A peer's records on the board, and its reading of others': peers that serve, and the newest release."""

    def __init__(
        self, kernel: Kernel, beats: Heartbeats, releases: ReleaseExchange, presence: Presence, take: Take
    ) -> None:
        self._kernel, self._beats, self._releases = kernel, beats, releases
        self._take = take
        self._read: dict[Key, Callable[[bytes], object]] = {
            Key.MEMBER: presence.receive,
            Key.NEWEST: releases.receive,
        }

    async def run(self) -> None:
        """Post, where others depend on this peer; read, while no gossip has named a learner."""
        kernel, board = self._kernel, self._kernel.ports.board
        posts = ROLES[kernel.who.role].posts
        while True:
            if posts:
                await board.put(kernel.topic(Key.MEMBER), self._beats.sealed(), ttl=RECORD_SECONDS)
                sealed = self._releases.sealed_newest()
                if 0 < len(sealed) <= RECORD_LIMIT:  # one with many votes is asked for
                    await board.put(kernel.topic(Key.NEWEST), sealed, ttl=RECORD_SECONDS)
            knows = bool(kernel.roster.learners())
            if not knows:
                for name, take in self._read.items():
                    for sender, sealed in (await board.get(kernel.topic(name))).items():
                        self._take(take, name, sender, sealed)
            await kernel.ports.clock.sleep(self._pause(knows and not posts))

    def _pause(self, is_idle: bool) -> float:
        """Seconds until the next look. A peer without records of its own looks only when it may have lost its
        last learner."""
        often = RECORD_SECONDS / 3
        return max(often, self._kernel.config.run.pace.patience / 4) if is_idle else often
