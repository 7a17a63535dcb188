"""Whether this peer's last policy is in the line of the release that it loads.

    own, theirs -> swarm.core.agreement.lineage
                        -- not known to meet --> service `line`: its publisher, a holder

Not handled here: which line counts (swarm.core.agreement.releases), groups that only this peer's line was
trained on (peers.learner.agreement.catch_up).
"""

from __future__ import annotations

from collections.abc import Collection

from peers.runtime.kernel import Kernel
from swarm import events
from swarm.core.agreement.lineage import Fork, Line, Lineage, Point, PointQuery
from swarm.frames import wire
from swarm.net.ports import NetError, read_question
from swarm.protocol import Service
from swarm.types import PeerId, Release

ASKED = 2
"""Peers that are asked: the publisher, and one more where that one is gone."""

GAPS = 4
"""Lines requested from one peer at a time: that of a release, and those of its latest merges."""

TIMEOUT = 5.0
"""Seconds for an answer of 70 KB."""


class ReleaseLines:
    def __init__(self, kernel: Kernel) -> None:
        self._kernel, self.lineage = kernel, Lineage()

    async def serve(self) -> None:
        await self._kernel.ports.mail.serve(Service.LINE, self._answer)

    async def fork(self, mine: Point, theirs: Release) -> Fork | None:
        """Where this peer's line and that of a release part; None where no peer here knows. The lines of
        others are requested when they are not known to meet."""
        end = (theirs.version, theirs.weights)
        for peer in self._likely_holders(theirs)[:ASKED]:
            if (found := self.lineage.meet(mine, end)) is not None:
                return found
            await self._ask(peer, self.lineage.unknown(end))
        return self.lineage.meet(mine, end)

    async def complete(self, release: Release, since: int) -> None:
        """Ask for the merged lines of a release after version `since`, as far as they are not known."""
        end = (release.version, release.weights)
        for peer in self._likely_holders(release)[:ASKED]:
            await self._ask(peer, self.lineage.unknown_merged(end, since))

    def _likely_holders(self, release: Release) -> list[PeerId]:
        """Its publisher first, although no heartbeat of it may have arrived yet when two parts meet; then
        holders."""
        peers = dict.fromkeys((release.publisher, *self._kernel.roster.holders(release.version)))
        return [peer for peer in peers if peer != self._kernel.ports.me]

    async def _ask(self, peer: PeerId, ends: Collection[Point]) -> None:
        for version, weights in sorted(ends, reverse=True)[:GAPS]:
            question = wire.encode(PointQuery(version=version, weights=weights))
            try:
                answer = await self._kernel.ports.mail.send(peer, Service.LINE, question, TIMEOUT)
                self.lineage.learn(wire.decode(answer, Line), version)
            except NetError:
                return  # another one is asked
            except wire.WireError as error:
                self._kernel.emit(events.Rejected, sender=peer, kind=Service.LINE, reason=str(error))

    async def _answer(self, sender: PeerId, question: bytes) -> bytes:
        asked = read_question(question, PointQuery)
        return wire.encode(self.lineage.line_of((asked.version, asked.weights)))
