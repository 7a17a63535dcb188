"""The seed: the peer that others connect to first, which keeps releases and history.

It publishes version 0 and keeps the newest releases on its disk (peers.runtime.releases.exchange). A swarm
whose peers all died continues from the last released version, or from the one before if those bytes are
damaged. The seed observes: its journal has every event of the swarm. It also announces that the run is
complete; peers that reach the same conclusion then leave (swarm.core.completion).
"""

from __future__ import annotations

from peers.intake.unkept_steps import UnkeptSteps
from peers.runtime.host import Host
from swarm import events
from swarm.core.agreement.releases import rank
from swarm.protocol import Phase
from swarm.storage.weights import Weights
from swarm.types import Release

COMPLETE_FOR = 5.0
"""Seconds that the seed stays after the run is complete, so that its heartbeat reaches every peer."""


class Seed:
    def __init__(self, host: Host, genesis: Weights | None) -> None:
        """`genesis` is version 0 as a release's bytes, None where the run was not started here."""
        self.host, self._genesis = host, genesis
        self._unkept = UnkeptSteps(host)

    async def run(self) -> None:
        await self._unkept.serve()
        await self._begin()
        while not self.host.stop.is_set():
            if self.host.end.is_complete(self.host.status.version):
                return await self._end()
            self.host.status.phase = Phase.SERVING
            if not await self._hold():
                held = self.host.releases.held
                await self.host.changed(
                    min(
                        self.host.config.run.pace.beat,
                        self.host.releases.retry_after(rank(held) if held else ()),
                    )
                )

    async def _begin(self) -> None:
        """Serve the best release whose bytes are on the disk, or version 0."""
        host = self.host
        if (held := host.releases.held) is not None:
            self._set_status(held)
        elif self._genesis is not None:
            release = await host.releases.publish(self._genesis)
            self._set_status(release)
        self._genesis = None
        self._report_missing()

    def _report_missing(self) -> None:
        host, held = self.host, self.host.releases.held
        lost = host.releases.awaited(rank(held) if held is not None else ())
        offered = f"version {held.version} is offered" if held is not None else "nothing can be offered"
        if lost is not None:
            self._warn(
                f"release {lost.version} is not whole on this disk: {offered} until a peer that holds the"
                " other is heard"
            )
        elif held is None:
            self._warn(f"no release is whole on this disk: {offered} until a peer that holds one is heard")

    async def _hold(self) -> bool:
        """Offer a better release, fetched where its bytes are not here. False when there is none now."""
        host = self.host
        held = host.releases.held
        if held is not None and (held.version, held.weights) != (host.status.version, host.status.weights):
            self._set_status(held)  # nothing was fetched: its bytes are those of a version that is here
            return True
        if (found := await host.releases.obtain(rank(held) if held is not None else ())) is None:
            return False
        self._set_status(found[0])
        return True

    def _warn(self, text: str) -> None:
        self.host.emit(events.Noted, level="warning", text=text)

    def _set_status(self, release: Release) -> None:
        self.host.status.version, self.host.status.weights = release.version, release.weights
        self.host.status.finished(1, 0, self.host.now())

    async def _end(self) -> None:
        self.host.status.phase = Phase.COMPLETE
        self.host.emit(events.Noted, level="info", text="the run is complete")
        self.host.beat_now()
        await self.host.ports.clock.sleep(COMPLETE_FOR)
