"""What every peer of a run does whatever its role: send and hear heartbeats and events, exchange releases.

         gossip beat, beat/sampler, release, event
    in   -> unseal -> trust -> Roster / ReleaseExchange / bus
    out  <- seal   <- PeerStatus, own events (bundled)

A role is a coroutine over a Host; it reads `roster`, exchanges policies through `releases`, writes `status`,
emits events, and waits with `changed(timeout)` for anything above to move. `stop` asks it to finish the group
or step at hand and leave. Frames that cannot be believed become Rejected events; nothing a peer sends can end
a loop here. Not handled here: releases (peers.runtime.releases).
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from peers.runtime.frames import Frames
from peers.runtime.releases import ReleaseExchange
from peers.runtime.status import PeerStatus
from peers.runtime.traffic import Traffic
from swarm import events, wire
from swarm.config import Config
from swarm.core.membership import Trust, needs_membership
from swarm.core.roster import Roster
from swarm.net.ports import NetError, Ports
from swarm.protocol import (
    BEAT_LIMIT,
    EVENT_LIMIT,
    MAIL_LIMIT,
    PHASES,
    RECORD_SECONDS,
    ROLES,
    TOPICS,
    Key,
    Limit,
    Phase,
    Role,
    Topic,
)
from swarm.types import Beat, Digest, Membership, PeerId

BUNDLE_EVERY = 0.25
"""Seconds between two bundles of events: four pictures a second is what a page can show."""

EVENTS_KEPT = 256
"""Own events that wait for the next bundle; in a storm the oldest are dropped, the journal has them all."""

DELIVERED = 1024
"""Peers whose groups were of use, the last ones: ten times the samplers that one learner serves."""

TRAFFIC_EVERY = 5
"""Heartbeats between two looks at what passed: a picture of flows is a mean over seconds, and an event of it
as long as two beats."""

Dialable = Callable[[PeerId, tuple[str, ...]], None]
"""Where a peer can be dialled, as its heartbeat says: the node keeps it."""


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
    """Hears all events and all heartbeats and journals them: seeds and dashboards."""
    genesis: Digest | None = None
    """The weights of version 0, by the run's specification; a simulation has none."""


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
        dialable: Dialable = lambda *_: None,
    ) -> None:
        """Releases' bytes are held in the folder `shelf`, or in memory."""
        self._dialable, self.frames = dialable, frames
        self.traffic = Traffic(ports.clock.now())
        self.ports = self.traffic.counted(ports)
        self.who, self.config, self.bus, self.trust = who, config, bus, trust
        self.status = PeerStatus()
        self.stop = asyncio.Event()
        self.rng = random.Random(f"{config.run.seed}/{ports.me}")
        self.roster = Roster(config.run.pace.patience, self.rng)
        self.releases = ReleaseExchange(self, shelf)
        self._moved = asyncio.Event()
        self._beat_now = asyncio.Event()
        self._seq = 0
        self._bundle: deque[events.Event] = deque(maxlen=EVENTS_KEPT)
        self._delivered: OrderedDict[PeerId, None] = OrderedDict()
        self.bus.add(self._collect)

    # --- for roles ------------------------------------------------------------------------------------------

    def now(self) -> float:
        return self.ports.clock.now()

    def emit(self, what: type[events.Event], /, **fields: Any) -> None:
        told = {name: events.cut(value) if type(value) is str else value for name, value in fields.items()}
        self.bus.emit(what(at=self.now(), peer=self.ports.me, **told))

    def move(self) -> None:
        """Wake whoever waits in `changed`."""
        self._moved.set()
        self._moved = asyncio.Event()

    async def changed(self, timeout: float) -> None:
        """Until roster, releases, an inbox or `stop` moved, at most `timeout` seconds. Any number may
        wait."""
        moved = self._moved
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                await moved.wait()

    def leave(self) -> None:
        """Finish what is at hand, then end."""
        self.stop.set()
        self.move()

    def beat_now(self) -> None:
        """Something changed that others wait for (credit opened, a new version): do not wait for the next
        beat."""
        self._beat_now.set()

    def delivered(self, peer: PeerId) -> None:
        """A group of this peer was of use."""
        self._delivered[peer] = None
        self._delivered.move_to_end(peer)
        if len(self._delivered) > DELIVERED:
            self._delivered.popitem(last=False)

    def regular(self, peer: PeerId) -> bool:
        """Strangers must not keep this peer's mail out: it delivered, or is heard in a role that only members
        have."""
        beat = self.roster.beat(peer)
        return peer in self._delivered or (
            beat is not None and needs_membership(beat.role, self.config.run.private)
        )

    def seal(self, noun: object, limit: Limit = MAIL_LIMIT) -> bytes:
        return self.frames.seal(noun, limit)

    def distrust(self, opened: wire.Opened, role: Role) -> str | None:
        """Why this frame's sender may not act in `role`, or None."""
        return self.trust.objection(opened.sender, role, opened.membership, self.now())

    def invited(self, opened: wire.Opened, role: Role) -> bool:
        """Does this frame show that the run's owner vouches for its sender in `role`?"""
        return self.trust.invited(opened.sender, role, opened.membership, self.now())

    def topic(self, name: Topic | Key) -> str:
        return wire.topic(self.who.run, name)

    # --- services -------------------------------------------------------------------------------------------

    async def run(self, role: Callable[[], Any]) -> None:
        """Serve and run the role's coroutine until it ends; then say goodbye and end the services."""
        await self.releases.serve()
        async with asyncio.TaskGroup() as tasks:
            self._tell_traffic()  # what passed before, if anything did: from here on it is told in even steps
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
                self._tell_traffic()
                self.status.phase = Phase.LEAVING
                self.emit(
                    events.Left, name=self.who.name, reason="asked to stop" if self.stop.is_set() else "ended"
                )
                with contextlib.suppress(NetError):
                    await self._send_bundle()
                    await self._send_beat()
                for service in services:
                    service.cancel()

    def _services(self) -> list[Any]:
        names = [name for name, row in TOPICS.items() if row.all or self.who.observes]
        takers: dict[Topic, Callable[[bytes], object]] = {
            Topic.BEAT: self._hear_beat,
            Topic.BEAT_SAMPLER: self._hear_beat,
            Topic.RELEASE: self.releases.hear,
            Topic.EVENT: self._hear_events,
        }
        always = (
            self._beat_forever,
            self._expire_forever,
            self._bundle_forever,
            self.releases.ask_forever,
            self._post_forever,
            self._tell_traffic_forever,
            self.releases.look_for_holders_forever,
        )
        return [*(service() for service in always), *(self._listen(name, takers[name]) for name in names)]

    async def hear_samplers(self) -> None:
        """Listen to samplers' heartbeats, which only observers do otherwise, until cancelled."""
        await self._listen(Topic.BEAT_SAMPLER, self._hear_beat)

    async def _listen(self, name: Topic, take: Callable[[bytes], object]) -> None:
        async with self.ports.gossip.subscribe(self.topic(name)) as messages:
            async for sender, data in messages:
                self._take(take, name, sender, data)

    def _take(self, take: Callable[[bytes], object], kind: str, sender: PeerId, data: bytes) -> None:
        try:
            take(data)
        except wire.WireError as error:
            self.emit(events.Rejected, sender=sender, kind=kind, reason=str(error))

    def open(self, data: bytes, limit: Limit) -> wire.Opened:
        """A frame of this run; WireError for everything else."""
        return self.frames.open(data, limit)

    def _hear_beat(self, data: bytes) -> None:
        opened = self.open(data, BEAT_LIMIT)
        beat = wire.decode(opened.body, Beat)
        if (why := self.distrust(opened, beat.role)) is not None:
            raise wire.WireError(f"heartbeat of {opened.sender}: {why}")
        before = self.roster.beat(opened.sender)
        if opened.sender == self.ports.me or not self.roster.hear(opened.sender, beat, self.now()):
            return
        if before is None or before.weights != beat.weights:
            self.releases.candidates.found(beat.version, beat.weights)
        self._dialable(opened.sender, beat.addresses)
        if self.who.observes:
            self.emit(events.Heard, subject=opened.sender, beat=beat)
        if beat.phase is Phase.LEAVING:
            self.roster.forget(opened.sender)
        if beat.role is Role.SEED and beat.phase is Phase.COMPLETE:
            self.leave()
        self.move()

    def _hear_events(self, data: bytes) -> None:
        opened = self.open(data, EVENT_LIMIT)
        for event in wire.decode(opened.body, events.Bundle):
            if event.peer != opened.sender:
                raise wire.WireError(f"event {type(event).__name__} that {opened.sender} may not report")
            if (
                isinstance(event, events.Evaluated)
                and (why := self.distrust(opened, Role.EVALUATOR)) is not None
            ):
                raise wire.WireError(f"evaluation: {why}")
            if event.peer != self.ports.me:
                self.bus.emit(event)
        self.move()

    async def _tell_traffic_forever(self) -> None:
        while True:
            await self.ports.clock.sleep(self.config.run.pace.beat * TRAFFIC_EVERY)
            self._tell_traffic()

    def _tell_traffic(self) -> None:
        if passed := self.traffic.drain(self.now(), self.ports.relayed()):
            self.emit(events.Transferred, **passed)

    def _collect(self, event: events.Event) -> None:
        if event.peer == self.ports.me and isinstance(event, events.GOSSIPED):
            self._bundle.append(event)

    async def _bundle_forever(self) -> None:
        while True:
            await self.ports.clock.sleep(max(BUNDLE_EVERY, self.config.run.pace.beat / 4))
            with contextlib.suppress(NetError):
                await self._send_bundle()

    async def _send_bundle(self) -> None:
        while self._bundle:
            bundle: list[events.Event] = []
            size = 0
            while self._bundle and (
                not bundle or size + len(wire.encode(self._bundle[0])) < EVENT_LIMIT.sealed - 600
            ):
                size += len(wire.encode(self._bundle[0]))
                bundle.append(self._bundle.popleft())
            try:
                sealed = self.seal(bundle, EVENT_LIMIT)
            except wire.WireError as error:
                self.emit(events.Rejected, sender=self.ports.me, kind=Topic.EVENT, reason=str(error))
                continue
            await self.ports.gossip.publish(self.topic(Topic.EVENT), sealed)

    async def _beat_forever(self) -> None:
        pace = self.config.run.pace.beat
        while True:
            with contextlib.suppress(NetError):
                await self._send_beat()
            self._beat_now.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pace * self.rng.uniform(1.0, 1.25)):
                    await self._beat_now.wait()

    def _beat(self) -> Beat:
        now, status = self.now(), self.status
        self._seq += 1
        return Beat(
            name=self.who.name,
            role=self.who.role,
            incarnation=self.who.incarnation,
            seq=self._seq,
            version=status.version,
            weights=Digest(status.weights),
            state=PHASES[status.phase].text,
            phase=status.phase,
            credit=status.credit,
            takers=status.takers,
            inbox=status.inbox,
            done=status.done,
            refused=status.refused,
            rate=round(status.groups.rate(now), 3),
            tokens=round(status.tokens.rate(now), 1),
            busy=round(min(1.0, status.busy.rate(now)), 3),
            lag=status.lag,
            addresses=self.ports.addresses()[:2],
            hardware=self.who.hardware,
            at=now,
            closed=status.closed,
        )

    async def _send_beat(self) -> None:
        beat = self._beat()
        if self.who.observes:
            self.emit(events.Heard, subject=self.ports.me, beat=beat)
        topic = self.topic(ROLES[self.who.role].heartbeat)
        await self.ports.gossip.publish(topic, self._seal_beat(beat))

    async def _post_forever(self) -> None:
        """The board says who serves and what is newest, for those whom no gossip reaches yet: peers that
        others depend on post it, and whoever knows no learner reads it."""
        while True:
            if ROLES[self.who.role].posts:
                await self.ports.board.put(
                    self.topic(Key.MEMBER), self._seal_beat(self._beat()), ttl=RECORD_SECONDS
                )
                if sealed := self.releases.sealed_newest():
                    await self.ports.board.put(self.topic(Key.NEWEST), sealed, ttl=RECORD_SECONDS)
            if not self.roster.learners():
                for name, take in ((Key.MEMBER, self._hear_beat), (Key.NEWEST, self.releases.hear)):
                    for sender, sealed in (await self.ports.board.get(self.topic(name))).items():
                        self._take(take, name, sender, sealed)
            await self.ports.clock.sleep(RECORD_SECONDS / 3)

    def _seal_beat(self, beat: Beat) -> bytes:
        """With as many addresses as fit: a membership and two long ones together outgrow the limit."""
        while beat.addresses:
            try:
                return self.seal(beat, BEAT_LIMIT)
            except wire.WireError:
                beat = msgspec.structs.replace(beat, addresses=beat.addresses[:-1])
        return self.seal(beat, BEAT_LIMIT)

    async def _expire_forever(self) -> None:
        while True:
            await self.ports.clock.sleep(self.config.run.pace.patience / 4)
            for peer, silent in self.roster.expire(self.now()):
                self.emit(events.Lost, subject=peer, silent=round(silent, 1))
                self.move()
