"""The host of a role: sends and receives a peer's heartbeats and events, and exchanges releases.

         gossip beat, beat/sampler, release, event
    in   -> unseal -> trust -> Roster / ReleaseExchange / bus
    out  <- seal   <- PeerStatus, own events (bundled)

A role is a coroutine over a Host; it reads `roster`, exchanges policies through `releases`, writes `status`,
emits events, and waits with `changed(timeout)` until one of these changes. `stop` asks it to finish the
current group or step and leave. A frame that is not valid becomes a Rejected event; no message of a peer can
end a loop here. Not handled here: releases (peers.runtime.releases.exchange).
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from peers.runtime.bundles import EventBundles
from peers.runtime.changes import Changes
from peers.runtime.clock_check import ClockCheck
from peers.runtime.faults import DiskFaults
from peers.runtime.frames import Frames, UnknownKey
from peers.runtime.heartbeats import Heartbeats
from peers.runtime.limits.pause_gate import Rest
from peers.runtime.membership.identity_check import IdentityCheck
from peers.runtime.membership.revocations import RevocationExchange
from peers.runtime.postings import post_forever
from peers.runtime.releases.exchange import ReleaseExchange
from peers.runtime.status import PeerStatus
from peers.runtime.traffic import Traffic
from peers.runtime.watching.reporters import reporters
from peers.runtime.watching.suspensions import SuspensionNews
from swarm import events
from swarm.core.completion import is_complete
from swarm.core.gossip_limits import GossipLimits
from swarm.core.membership import Trust
from swarm.core.roster import Roster
from swarm.frames import wire
from swarm.frames.run_types import Membership
from swarm.limits import BEAT_LIMIT, EVENT_LIMIT, MAIL_LIMIT, Limit, cut, remember
from swarm.net.ports import Ports
from swarm.protocol import RESTING, ROLES, TOPICS, Key, Phase, Role, Topic
from swarm.settings.config import Config
from swarm.types import Beat, Digest, PeerId

T = TypeVar("T")

DELIVERED_KEPT = 1024
"""Peers that are remembered for a group that was admitted: ten times the samplers that one learner serves."""

TRAFFIC_EVERY = 5
"""Heartbeats between two Transferred events, of which one is as long as two heartbeats: flows are means."""

LATER = 0.1
"""Seconds beyond its patience after which a peer is lost: two readings of a clock differ, and what is told of
its silence, in tenths, is more than that."""

FAREWELL = 3.0
"""Seconds of a goodbye: a p2pd that hangs takes none, and others miss this peer after `patience`."""

Met = Callable[[PeerId, Beat], None]
"""(peer, its heartbeat), this peer's own too: where it can be dialled is remembered."""


@dataclass(frozen=True)
class PeerInfo:
    """Who this peer is in the run."""

    name: str
    role: Role
    run: Digest
    incarnation: int
    hardware: str = ""
    membership: Membership | None = None
    observes: bool = False
    """Receives and journals all events and heartbeats: seeds and observers."""
    genesis: Digest | None = None
    """Digest of version 0's weights, from the run's specification; a simulation has none."""
    release_size: int | None = None
    """Bytes of every release, from there too."""


class Host:
    def __init__(
        self,
        who: PeerInfo,
        config: Config,
        ports: Ports,
        frames: Frames,
        bus: events.Bus,
        trust: Trust,
        shelf: Path | None = None,
        met: Met = lambda *_: None,
    ) -> None:
        """Releases' bytes are held in the folder `shelf`, or in memory when it is None."""
        self._met, self.frames = met, frames
        self.traffic = Traffic(ports.clock.now())
        self.ports = self.traffic.counted(ports)
        self.who, self.config, self.bus, self.trust = who, config, bus, trust
        self.status = PeerStatus()
        self.stop = asyncio.Event()
        self.rng = random.Random(f"{config.run.seed}/{ports.me}")
        self.roster = Roster(config.run.pace.patience, self.rng)
        self.disk = DiskFaults(self)
        self.releases = ReleaseExchange(self, shelf)
        self._changes, self._clock_check = Changes(), ClockCheck(self)
        self.identity, self.rest = IdentityCheck(self), Rest(self)
        self._beats = Heartbeats(self, met)
        self._author: PeerId | None = None
        """Of the gossip that is read now: nobody may say again what another one signed."""
        self._bundles = EventBundles(self)
        self.revocations, self.suspensions = RevocationExchange(self), SuspensionNews(self)
        self._delivered: OrderedDict[PeerId, None] = OrderedDict()
        self._ends: OrderedDict[PeerId, None] = OrderedDict()
        """Seeds that said that the run is complete."""
        self.bus.add(self._bundles.collect)
        self.ports.mail.guard(self._shut_out)
        self.hearing = GossipLimits(self.known_sender, self.now)
        self.ports.gossip.guard(self.hearing.takes)

    # --- for roles ------------------------------------------------------------------------------------------

    def now(self) -> float:
        """Unix seconds by this machine's clock, which somebody may set."""
        return self.ports.clock.now()

    @staticmethod
    def steady() -> float:
        """Seconds of a clock that nobody sets, for waits."""
        return asyncio.get_running_loop().time()

    def emit(self, what: type[events.Event], /, **fields: Any) -> None:
        short = {name: cut(value) if type(value) is str else value for name, value in fields.items()}
        self.bus.emit(what(at=self.now(), peer=self.ports.me, **short))

    def disk_damaged(self, what: str) -> None:
        """Tell what a disk lost."""
        self.disk.damaged(what)

    def move(self) -> None:
        """Wake whoever waits in `changed`."""
        self._changes.wake()

    async def changed(self, timeout: float) -> None:
        """Wait until roster, releases, an inbox or `stop` changes, at most `timeout` seconds."""
        await self._changes.wait(timeout)

    def leave(self) -> None:
        """Ask the role to finish its current group or step, then to end."""
        self.stop.set()
        self.move()

    def beat_now(self) -> None:
        """Send a heartbeat at once: something changed that others wait for (credit, a new version)."""
        self._beats.now()

    def sealed_beat(self) -> bytes:
        """A heartbeat as of now, for who does not hear gossip."""
        return self._beats.sealed()

    @property
    def slower(self) -> float:
        """How many times as long as in a small swarm others wait for what this peer tells of itself."""
        return self._beats.slower

    def delivered(self, peer: PeerId) -> None:
        """Remember that a group of this peer was admitted."""
        remember(self._delivered, peer, None, DELIVERED_KEPT)

    def known_sender(self, peer: PeerId) -> bool:
        """Whether what this peer sends goes before what strangers do: a group of it was admitted, or the
        run's owner vouches for it."""
        return peer in self._delivered or self.roster.proven(peer)

    def posting(self) -> list[PeerId]:
        """Members that post to the board, this peer among them."""
        return [self.ports.me, *(peer for peer, beat in self.roster if ROLES[beat.role].posts)]

    def members(self) -> list[PeerId]:
        """Those that have shown their membership here, this peer among them: all peers of a private run."""
        return [self.ports.me, *self.trust.members(self.now())]

    def seal(self, noun: object, limit: Limit = MAIL_LIMIT) -> bytes:
        return self.frames.seal(noun, limit)

    def distrust(self, opened: wire.Opened, role: Role, said: float | None = None) -> str | None:
        """Why this frame's sender may not act in `role`, or None. `said` as in Revocations.why."""
        return self.trust.objection(opened.sender, role, opened.membership, self.now(), said)

    def invited(self, opened: wire.Opened, role: Role) -> bool:
        """Whether this frame has a membership by the run's owner that admits its sender to `role`."""
        return self.trust.invited(opened.sender, role, opened.membership, self.now())

    def _shut_out(self, peer: PeerId, service: str) -> str | None:
        """Why a peer's mail is not read, or None."""
        return self.trust.refusal(peer, service, self.now())

    def topic(self, name: Topic | Key) -> str:
        return wire.topic(self.who.run, name)

    # --- services -------------------------------------------------------------------------------------------

    async def run(self, role: Callable[[], Any]) -> None:
        """Serve and run the role's coroutine until it ends; then say goodbye and end the services."""
        self.releases.restore()
        await self.releases.serve()
        await self.identity.serve()
        await self.revocations.serve()
        async with asyncio.TaskGroup() as tasks:
            self._emit_traffic()  # bytes from before; from here on events come at a fixed interval
            services = [tasks.create_task(service) for service in self._services()]
            self.emit(
                events.Started,
                name=self.who.name,
                role=self.who.role,
                version=self.status.version,
                hardware=self.who.hardware,
            )
            try:
                await role()
            finally:
                self._emit_traffic()
                self.status.phase = Phase.LEAVING
                if not self.identity.replaced:
                    await self._say_goodbye()
                for service in services:
                    service.cancel()

    async def _say_goodbye(self) -> None:
        reason = self.revocations.refused or ("asked to stop" if self.stop.is_set() else "ended")
        self.emit(events.Left, name=self.who.name, reason=reason)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(FAREWELL):
                await self._bundles.send()
                await self._beats.send()

    def _services(self) -> list[Any]:
        takers: dict[Topic, Callable[[bytes], object]] = {
            Topic.BEAT: self.hear_beat,
            Topic.BEAT_SAMPLER: self.hear_beat,
            Topic.RELEASE: self.releases.hear,
            Topic.EVENT: self._hear_events,
        }
        if self.who.role is not Role.LEARNER:  # it subscribes itself
            takers[Topic.ACCUSED] = self.suspensions.hear
        names = [name for name in takers if TOPICS[name].all or self.who.observes]
        always = (
            self._beats.send_forever,
            self._expire_forever,
            self._bundles.send_forever,
            self.revocations.ask_forever,
            self.releases.queries.ask_forever,
            partial(post_forever, self),
            self._emit_traffic_forever,
            self.releases.queries.look_for_holders_forever,
            self.releases.mirror_forever,
            self.releases.store_forever,
        )
        return [*(service() for service in always), *(self.listen(name, takers[name]) for name in names)]

    async def hear_samplers(self) -> None:
        """Listen to samplers' heartbeats until cancelled; otherwise only observers do."""
        await self.listen(Topic.BEAT_SAMPLER, self.hear_beat)

    async def listen(self, name: Topic, take: Callable[[bytes], object]) -> None:
        """Hand each message of a topic to `take` until cancelled; a WireError of it becomes a Rejected event.
        Who says again what another one signed is not heard: gossip names the author of each message."""
        async with self.ports.gossip.subscribe(self.topic(name)) as messages:
            async for sender, data in messages:
                if self.hearing.is_suspended(sender):
                    continue  # it was said before
                self._author = sender
                self.take(take, name, sender, data)
                self._author = None

    def take(self, take: Callable[[bytes], object], kind: str, sender: PeerId, data: bytes) -> None:
        try:
            if (why := self.trust.revoked(sender)) is not None:
                raise wire.WireError(why)
            take(data)
        except UnknownKey as error:
            if not self.revocations.heard(sender, error.epoch):
                self.emit(events.Rejected, sender=sender, kind=kind, reason=str(error))
        except wire.WireError as error:
            self.emit(events.Rejected, sender=sender, kind=kind, reason=str(error))

    @property
    def is_of_author(self) -> bool:
        """Whether what is read now was just said by who signed it: gossip of its author."""
        return self._author is not None

    def read(self, data: bytes, limit: Limit, kind: type[T]) -> tuple[wire.Opened, T]:
        """Open a frame of this run, and decode it. Raises WireError for everything else."""
        try:
            opened, noun = self.frames.read(data, limit, kind)
            if self._author not in (None, opened.sender):
                raise wire.WireError(f"it is signed by {opened.sender}, who did not say it")
        except wire.WireError as error:
            if isinstance(error, UnknownKey) or self._author is None:
                raise
            seconds = self.hearing.blame(self._author)
            until = f"; nothing of it is read for {seconds:g} s" if seconds else ""
            raise wire.WireError(f"{error}{until}") from error
        return opened, noun

    def hear_beat(self, data: bytes) -> None:
        opened, beat = self.read(data, BEAT_LIMIT, Beat)
        if (why := self.distrust(opened, beat.role)) is not None:
            raise wire.WireError(f"heartbeat of {opened.sender}: {why}")
        invited = self.invited(opened, beat.role)
        if beat.mirror >= 0 and not invited:  # a mirror is asked first, so it can delay all peers
            beat = msgspec.structs.replace(beat, mirror=-1)
        self.identity.hear(opened.sender, beat, data)
        if proven := invited or opened.sender in self._delivered:
            self.revocations.heard(opened.sender, beat.revoked)
        before = self.roster.beat(opened.sender)
        if opened.sender == self.ports.me or not self.roster.hear(opened.sender, beat, self.now(), proven):
            return
        if before is None or (before.version, before.weights) != (beat.version, beat.weights):
            self.releases.found(beat.version, beat.weights, opened.sender if invited else None)
        self.releases.doubts.hear(beat)
        self._met(opened.sender, beat)
        if self.who.observes:
            self.emit(events.Heard, subject=opened.sender, beat=beat, invited=invited)
        if beat.phase is Phase.LEAVING:
            self.roster.forget(opened.sender)
        if beat.role is Role.SEED and beat.phase is Phase.COMPLETE:
            self._called_complete(opened.sender)
        self._look_for_end()
        self.move()

    def is_complete(self, version: int) -> bool:
        """Whether the run is complete (`run.stop`) with this version, by what evaluators said here."""
        mine = self.status.accuracy, self.status.accuracy_before
        accuracies = [mine] if self.who.role is Role.EVALUATOR else []
        accuracies += [
            (beat.accuracy, beat.accuracy_before)
            for _, beat in self.roster
            if beat.role is Role.EVALUATOR and beat.phase not in RESTING
        ]
        return is_complete(self.config.run.stop, version, accuracies)

    def _newest(self) -> int:
        newest = self.releases.awaited(())
        return newest.version if newest is not None else -1

    def _called_complete(self, seed: PeerId) -> None:
        """A seed says that the run is complete. Tell once where nothing heard here agrees."""
        if seed not in self._ends and not self.is_complete(newest := self._newest()):
            text = (
                f"{seed} says that the run is complete, at version {newest}, and neither the releases nor the"
                " evaluators heard here say so: this peer goes on"
            )
            self.emit(events.Noted, level="warning", text=text)
        remember(self._ends, seed, None, DELIVERED_KEPT)

    def _look_for_end(self) -> None:
        """Leave once a seed said that the run is complete and this peer finds so, too. Peers do not leave
        before: a seed says it when it holds the last release, which others may have yet to fetch."""
        if self._ends and not self.stop.is_set() and self.is_complete(self._newest()):
            self.leave()

    def _hear_events(self, data: bytes) -> None:
        opened, bundle = self.read(data, EVENT_LIMIT, events.Bundle)
        if (why := self.trust.revocations.why(opened.sender, opened.membership)) is not None:
            raise wire.WireError(f"events of {opened.sender}: {why}")
        for event in bundle:
            if event.peer != opened.sender:
                raise wire.WireError(f"event {type(event).__name__} that {opened.sender} may not report")
            if (why := self._unreported(opened, event)) is not None:
                raise wire.WireError(f"{type(event).__name__.lower()}: {why}")
            if event.peer != self.ports.me:
                self.bus.emit(event)
        self.move()

    def _unreported(self, opened: wire.Opened, event: events.Event) -> str | None:
        """Why a frame's sender may not report an event, or None."""
        if isinstance(event, events.Started):
            return self.distrust(opened, event.role)
        roles = reporters(event)
        if not roles or any(self.invited(opened, role) for role in roles):
            return None
        return self.distrust(opened, roles[0])

    async def _emit_traffic_forever(self) -> None:
        while True:
            await self.ports.clock.sleep(self.config.run.pace.beat * TRAFFIC_EVERY * self.slower)
            self._emit_traffic()

    def _emit_traffic(self) -> None:
        if passed := self.traffic.drain(self.now(), self.ports.relayed(), self.ports.carried()):
            self.emit(events.Transferred, **passed)

    async def _expire_forever(self) -> None:
        look = self.config.run.pace.patience / 4
        while True:
            self._clock_check.look()
            lost, until = self.roster.expire(self.now())
            for peer, silent in lost:
                self.emit(events.Lost, subject=peer, silent=round(silent, 1))
                self.move()
            self._look_for_end()
            await self.ports.clock.sleep(min(look, until - self.now() + LATER))
