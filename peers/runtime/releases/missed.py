"""Announcements that this peer missed while it was away.

    held versions, wanted release -> a holder -> the releases between them, as their publishers signed them

Patches lead from one version to the next: a peer that misses an announcement misses a step, and would fetch
the whole release. Invariants: a release counts only with its publisher's signature; two holders are asked,
once for each release. Not handled here: which way is taken (swarm.core.agreement.patch_path), fetching it
(peers.runtime.releases.patch_ladder).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from peers.runtime.kernel import Kernel
from swarm.core.agreement.patch_path import cheapest
from swarm.core.agreement.releases import Releases
from swarm.frames import wire
from swarm.limits import WAY_BASES
from swarm.net.ports import NetError, read_question
from swarm.protocol import Service
from swarm.types import Digest, PeerId, Release, Way, WayQuery

ASKED = 2
"""Holders that are asked: one may have come later than the way began."""

TIMEOUT = 5.0
"""Seconds for an answer of 24 KiB."""


class MissedReleases:
    def __init__(
        self,
        kernel: Kernel,
        candidates: Releases,
        bases: Callable[[], list[Digest]],
        remember: Callable[[bytes, PeerId], bool],
    ) -> None:
        """`bases`: weights from which patches may lead here, those of the newest version first; `remember`
        takes a sealed release that a peer shows, if it can be believed."""
        self._kernel, self._candidates, self._bases, self._remember = kernel, candidates, bases, remember
        self._asked: Digest | None = None
        """The last release for which a way was requested."""

    async def serve(self) -> None:
        await self._kernel.ports.mail.serve(Service.WAY, self._answer)

    async def ask(self, release: Release, holders: Sequence[PeerId]) -> None:
        """Request the releases that lead to this one, where a version held here may lead to it by an unknown
        way. Peers whose heartbeats name it come before its publisher: one that is gone costs TIMEOUT."""
        held = self._bases()[:WAY_BASES]
        if not held or release.weights in (self._asked, *held) or self._way(release, held):
            return
        self._asked = release.weights
        question = wire.encode(WayQuery(to=release.weights, held=tuple(held)))
        for holder in self._kernel.rng.sample(holders, min(ASKED, len(holders))):
            try:
                answer = await self._kernel.ports.mail.send(holder, Service.WAY, question, TIMEOUT)
                way = wire.decode(answer, Way)
            except (NetError, wire.WireError):
                continue  # the next one is asked, and without a way the whole release is fetched
            for sealed in way.releases:
                self._remember(sealed, holder)
            if self._way(release, held):
                return

    def _way(self, release: Release, held: Sequence[Digest]) -> tuple[Release, ...]:
        steps = cheapest(release, self._candidates.by_weights(), {*held}.__contains__)
        return tuple(step.release for step in steps)

    async def _answer(self, sender: PeerId, question: bytes) -> bytes:
        asked = read_question(question, WayQuery)
        ends = self._candidates.by_weights().get(asked.to, ())
        ways = [way for end in ends if (way := self._way(end, asked.held))]
        way = min(ways, key=len, default=())
        return wire.encode(Way(releases=tuple(map(self._candidates.sealed, way))))
