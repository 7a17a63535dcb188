"""A mirror: a peer on a good line that fetches every release as soon as it is announced, and that others
query
first.

    announcement -> its bytes (peers.runtime.releases.exchange) -> status.mirror, a heartbeat at once
                  -> all patches that it names, those of a rung as well, for whoever is behind

It skips patches that it cannot get: other peers have them, or none has. Not handled here: the order in which
peers are queried (swarm.core.roster), and whether a mirror is used at all (peers.runtime.presence: claims of
strangers do not count).
"""

from __future__ import annotations

import contextlib

from peers.runtime.kernel import Kernel
from peers.runtime.releases.exchange import ReleaseExchange, mirrors
from swarm.core.agreement.releases import rank
from swarm.net.ports import NetError


class Mirror:
    def __init__(self, kernel: Kernel, releases: ReleaseExchange) -> None:
        self._kernel, self._releases = kernel, releases
        self._begin: int | None = None
        """The first version that was here: patches of older ones are not sought."""
        self._sought = -1
        """The newest version whose patches were requested."""

    async def run(self) -> None:
        """Fetch announced releases, where this peer is a mirror."""
        kernel = self._kernel
        while mirrors(kernel.config):
            held = self._releases.held
            above = rank(held) if held is not None else ()
            if held is not None and held.version > kernel.status.mirror:
                kernel.status.mirror = held.version
                kernel.beat_now()
            if held is not None and held.version > self._sought:
                await self._take_patches(held.version)
            elif await self._releases.obtain(above) is None:
                pause = min(kernel.config.run.pace.beat, self._releases.retry_after(above))
                await self._releases.changed(pause)

    async def _take_patches(self, version: int) -> None:
        """Those of all announced releases up to `version` that were not sought yet."""
        self._begin = version if self._begin is None else self._begin
        for release in self._releases.announced():
            if max(self._begin, self._sought) < release.version <= version:
                with contextlib.suppress(NetError):
                    await self._releases.take_patches(release)
        self._sought = version
