"""Whether this peer's last policy is in the line of the release that it loads.

    own, theirs -> swarm.core.agreement.lineage
                        -- not known to meet --> service `line`: its publisher, a holder

Not handled here: which line counts (swarm.core.agreement.releases), groups that only this peer's line was
trained on (peers.learner.agreement.catch_up).
"""

from __future__ import annotations

from peers.runtime.kernel import Kernel
from swarm import events
from swarm.core.agreement.lineage import Fork, Line, Lineage, Point, PointQuery
from swarm.frames import wire
from swarm.net.ports import NetError, read_question
from swarm.protocol import Service
from swarm.types import PeerId, Release

ASKED = 2
"""Peers that are asked: the publisher, and one more where that one is gone."""

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
            found, gap = self.lineage.meet(mine, end), self.lineage.unknown(end)
            if found is not None or gap is None:
                return found
            await self._ask(peer, gap)
        return self.lineage.meet(mine, end)

    def _likely_holders(self, release: Release) -> list[PeerId]:
        """Its publisher first, although no heartbeat of it may have arrived yet when two parts meet; then
        holders."""
        peers = dict.fromkeys((release.publisher, *self._kernel.roster.holders(release.version)))
        return [peer for peer in peers if peer != self._kernel.ports.me]

    async def _ask(self, peer: PeerId, end: Point) -> None:
        question = wire.encode(PointQuery(version=end[0], weights=end[1]))
        try:
            answer = await self._kernel.ports.mail.send(peer, Service.LINE, question, TIMEOUT)
            self.lineage.learn(wire.decode(answer, Line), end[0])
        except NetError:
            return  # another one is asked
        except wire.WireError as error:
            self._kernel.emit(events.Rejected, sender=peer, kind=Service.LINE, reason=str(error))

    async def _answer(self, sender: PeerId, question: bytes) -> bytes:
        asked = read_question(question, PointQuery)
        return wire.encode(self.lineage.line_of((asked.version, asked.weights)))
