"""The seed: where others find the run, and what remembers it.

It publishes version 0 and holds the newest releases for everybody, on disk, so that a
swarm whose peers all died goes on from the last released version. It observes: its journal has every event of the swarm. It
also says when the run is complete.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from peers.host import Host
from swarm import events
from swarm.durable import write_durably
from swarm.net.ports import NetError
from swarm.types import Digest, Release

FAREWELL = 5.0
# Seconds that a complete run's seed stays, so that every peer hears it say so.


class Seed:
    def __init__(self, host: Host, genesis: bytes | None, folder: Path | None) -> None:
        """`genesis` is version 0 as a release's bytes, where the run was started; `folder` keeps the newest release."""
        self.host, self._genesis, self.folder = host, genesis, folder
        self._held = -1
        self._accuracy = 0.0
        host.bus.add(self._watch)

    async def run(self) -> None:
        await self._begin()
        while not self.host.stop.is_set():
            self.host.vitals.state = "complete" if self._complete() else "serving"
            if self._complete():
                return await self._end()
            if not await self._hold():
                await self.host.changed(self.host.config.run.pace.beat)

    async def _begin(self) -> None:
        """Offer the newest release that the disk has, or version 0."""
        host = self.host
        if self.folder is not None and (path := self.folder / "newest").exists() and host.remember(path.read_bytes()):
            newest = host.releases.newest
            if newest is not None and host.blobs.get(newest.manifest) is not None:
                self._settle(newest)
                return
        if self._genesis is not None:
            weights = Digest(hashlib.sha256(self._genesis).hexdigest())
            manifest, address = host.blobs.publish(self._genesis, 0, weights)
            release = Release(
                version=0, weights=weights, manifest=address, size=manifest.size, parent=weights,
                publisher=host.ports.me, learners=0, groups=0, released=host.now(),
            )  # fmt: skip
            await host.announce(release)
            self._settle(release)
        self._genesis = None

    async def _hold(self) -> bool:
        """Fetch the newest release for others. False when there is nothing new."""
        host, newest = self.host, self.host.releases.newest
        if newest is None or newest.version <= self._held:
            return False
        try:
            await host.fetch(newest)
        except NetError as error:
            host.emit(events.Noted, level="warning", text=f"release {newest.version} could not be held: {error}")
            await host.ports.clock.sleep(1.0)
            return True
        if self.folder is not None:
            try:
                write_durably(self.folder / "newest", host.sealed_newest())
            except OSError as error:
                host.emit(events.Faulted, part="disk", detail=f"release {newest.version} is not on the disk: {error.strerror}")
        self._settle(newest)
        return True

    def _settle(self, release: Release) -> None:
        self._held = release.version
        self.host.vitals.version, self.host.vitals.weights = release.version, release.weights
        self.host.vitals.finished(1, 0, self.host.now())

    def _watch(self, event: events.Event) -> None:
        if isinstance(event, events.Evaluated):
            self._accuracy = event.accuracy

    def _complete(self) -> bool:
        stop = self.host.config.run.stop
        return 0 < stop.versions <= self._held or 0 < stop.accuracy <= self._accuracy

    async def _end(self) -> None:
        self.host.emit(events.Noted, level="info", text="the run is complete")
        self.host.beat_now()
        await self.host.ports.clock.sleep(FAREWELL)
