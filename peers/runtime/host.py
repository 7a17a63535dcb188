"""The host of a role: a peer's kernel, and the services of every peer, which are listed here.

         gossip beat, beat/sampler, release, event
    in   -> unseal -> trust -> Presence / ReleaseExchange / EventBundles
    out  <- seal   <- Heartbeats, EventBundles, ReleaseExchange

A role is a coroutine over a Host; it reads `roster`, exchanges policies through `releases`, writes `status`,
emits events, and waits with `changed(timeout)` until one of these changes. `stop` asks it to finish the
current group or step and leave. A frame that is not valid becomes a Rejected event; no message of a peer can
end a loop here. No service knows the host: each is given the kernel and the services that it uses.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from peers.runtime.bundles import EventBundles
from peers.runtime.faults import DiskFaults
from peers.runtime.frames import Frames, UnknownKey
from peers.runtime.heartbeats import Heartbeats, Met
from peers.runtime.kernel import Kernel, PeerInfo
from peers.runtime.limits.pause_gate import PauseGate
from peers.runtime.membership.identity_check import IdentityCheck
from peers.runtime.membership.revocations import RevocationExchange
from peers.runtime.presence import Postings, Presence
from peers.runtime.releases.exchange import ReleaseExchange
from peers.runtime.releases.mirror import Mirror
from peers.runtime.releases.queries import HolderSearch, ReleaseQueries
from peers.runtime.run_end import RunEnd
from peers.runtime.traffic import EVERY_BEATS, TrafficReports
from peers.runtime.watching.suspensions import SuspensionNews
from swarm import events
from swarm.core.membership import Trust
from swarm.frames import wire
from swarm.net.ports import Ports
from swarm.protocol import TOPICS, Phase, Topic
from swarm.settings.config import Config
from swarm.types import PeerId

FAREWELL = 3.0
"""Seconds of a goodbye: a p2pd that hangs takes none, and others miss this peer after `patience`."""


class Host(Kernel):
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
        super().__init__(who, config, ports, frames, bus, trust)
        self.disk = DiskFaults(self)
        self.releases = ReleaseExchange(self, self.disk, shelf)
        self.queries = ReleaseQueries(self, self.releases)
        self.end = RunEnd(self, self.releases)
        self.revocations = RevocationExchange(self)
        self.beats = Heartbeats(self, self.releases, self.revocations, met)
        self.identity = IdentityCheck(self, self.beats.sealed, self._take_beat)
        self.presence = Presence(self, self.releases, self.revocations, self.identity, self.end, met)
        self.pause_gate, self.suspensions = PauseGate(self), SuspensionNews(self)
        self.bundles = EventBundles(self, self.beats)
        self._traffic_reports = TrafficReports(self.traffic, self.ports, self.emit, self._between_reports)
        postings = Postings(self, self.beats, self.releases, self.presence, self.take)
        self._runs = (
            self.beats.run,
            self.presence.run,
            self.bundles.run,
            self.revocations.run,
            self.queries.run,
            postings.run,
            self._traffic_reports.run,
            HolderSearch(self, self.releases, self.listen_to_samplers).run,
            Mirror(self, self.releases).run,
            self.releases.run,
        )
        self.bus.add(self.bundles.collect)

    async def run(self, role: Callable[[], Any]) -> None:
        """Serve and run the role's coroutine until it ends; then announce the departure and end the
        services."""
        self.releases.restore()
        for service in (self.releases, self.queries, self.identity, self.revocations):
            await service.serve()
        handlers = {
            topic: take
            for service in (self.presence, self.releases, self.bundles, self.suspensions)
            for topic, take in service.handlers().items()
            if TOPICS[topic].all or self.who.observes
        }
        async with asyncio.TaskGroup() as tasks:
            self._traffic_reports.report()  # bytes from before; from here on events come at a fixed interval
            running = [tasks.create_task(run()) for run in self._runs]
            running += [tasks.create_task(self.listen(topic, take)) for topic, take in handlers.items()]
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
                self._traffic_reports.report()
                self.status.phase = Phase.LEAVING
                if not self.identity.replaced:
                    await self._announce_leaving()
                for task in running:
                    task.cancel()

    async def _announce_leaving(self) -> None:
        reason = self.revocations.refused or ("asked to stop" if self.stop.is_set() else "ended")
        self.emit(events.Left, name=self.who.name, reason=reason)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(FAREWELL):
                await self.bundles.send()
                await self.beats.send()

    async def listen_to_samplers(self) -> None:
        """Listen to samplers' heartbeats until cancelled; otherwise only observers do."""
        await self.listen(Topic.BEAT_SAMPLER, self.presence.receive)

    async def listen(self, name: Topic, take: Callable[[bytes], object]) -> None:
        """Call `take` with each message of a topic until cancelled; a WireError of it becomes a Rejected
        event. Repetitions of a message by another peer are ignored: gossip names the author of each
        message."""
        async with self.ports.gossip.subscribe(self.topic(name)) as messages:
            async for sender, data in messages:
                if self.gossip_limits.is_suspended(sender):
                    continue  # a repetition
                with self.authored_by(sender):
                    self.take(take, name, sender, data)

    def take(self, take: Callable[[bytes], object], kind: str, sender: PeerId, data: bytes) -> None:
        """Hand a message to `take`; a WireError of it becomes a Rejected event."""
        try:
            if (why := self.trust.revoked(sender)) is not None:
                raise wire.WireError(why)
            take(data)
        except UnknownKey as error:
            if not self.revocations.note_claim(sender, error.epoch):
                self.emit(events.Rejected, sender=sender, kind=kind, reason=str(error))
        except wire.WireError as error:
            self.emit(events.Rejected, sender=sender, kind=kind, reason=str(error))

    def _take_beat(self, kind: str, sender: PeerId, data: bytes) -> None:
        self.take(self.presence.receive, kind, sender, data)

    def _between_reports(self) -> float:
        """Seconds between two reports of traffic."""
        return self.config.run.pace.beat * EVERY_BEATS * self.beats.slower
