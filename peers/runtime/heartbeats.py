"""A peer's heartbeats: its state, published periodically, and at once where others wait for news of it.

    PeerStatus, releases, roster -> Beat -- sealed --> topic `beat`, those of samplers `beat/sampler`
                                                   --> the board (peers.runtime.presence)

Invariant: a heartbeat states how long its peer waits until the next one, in times of the run's pace. Not
handled here: the use of other peers' heartbeats (peers.runtime.presence), the length of that wait
(swarm.core.beat_pace).
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from peers.runtime.kernel import Kernel
from peers.runtime.membership.revocations import RevocationExchange
from peers.runtime.releases.exchange import ReleaseExchange
from swarm import events
from swarm.core.beat_pace import slower
from swarm.frames import wire
from swarm.limits import BEAT_LIMIT, RECORD_LIMIT, Limit
from swarm.protocol import PHASES, ROLES, Role, Topic
from swarm.types import Beat, Digest, Lag, PeerId

Met = Callable[[PeerId, Beat], None]
"""(peer, its heartbeat), this peer's own too: where it can be dialled is remembered."""


class Heartbeats:
    """One peer's."""

    def __init__(
        self, kernel: Kernel, releases: ReleaseExchange, revocations: RevocationExchange, met: Met
    ) -> None:
        """`met` is called with each heartbeat that is sent."""
        self._kernel, self._releases, self._revocations, self._met = kernel, releases, revocations, met
        self._seq = 0
        self.slower = 1.0
        """How many times as long as the run's pace I wait."""

    async def run(self) -> None:
        kernel, pace = self._kernel, self._kernel.config.run.pace.beat
        while True:
            kernel.beat_due = False
            is_one_of_many = self._topic() is Topic.BEAT_SAMPLER
            self.slower = slower(self._kernel.roster.crowd()) if is_one_of_many else 1.0
            await self.send()
            if not kernel.beat_due:
                await kernel.beat_notifier.wait(pace * self.slower * kernel.rng.uniform(1.0, 1.25))

    async def send(self) -> None:
        kernel, beat = self._kernel, self._beat()
        self._met(kernel.ports.me, beat)
        if kernel.who.observes:
            kernel.emit(events.Heard, subject=kernel.ports.me, beat=beat)
        await kernel.ports.gossip.publish(kernel.topic(self._topic()), self._seal(beat, BEAT_LIMIT))

    def sealed(self) -> bytes:
        """The current heartbeat for the board, whose records are shorter than gossip messages."""
        return self._seal(self._beat(), BEAT_LIMIT._replace(sealed=RECORD_LIMIT))

    def _topic(self) -> Topic:
        is_mirror = self._kernel.status.mirror >= 0
        return Topic.BEAT if is_mirror else ROLES[self._kernel.who.role].heartbeat

    def _beat(self) -> Beat:
        kernel = self._kernel
        now, status, limits = kernel.now(), kernel.status, kernel.config.peer.limits
        self._seq += 1
        return Beat(
            name=kernel.who.name,
            role=kernel.who.role,
            incarnation=kernel.who.incarnation,
            seq=self._seq,
            version=status.version,
            weights=Digest(status.weights),
            state=PHASES[status.phase],
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
            addresses=kernel.ports.addresses()[:2],
            hardware=kernel.who.hardware,
            at=now,
            closed=status.closed,
            early=status.early,
            accuracy=status.accuracy,
            accuracy_before=status.accuracy_before,
            judged=status.judged,
            mirror=status.mirror,
            unkept=status.unkept,
            upload=limits.upload,
            download=limits.download,
            fetching=status.taking() or self._releases.coming(),
            revoked=self._revocations.number,
            speed=float(f"{status.speed:.3g}"),
            hears=len(kernel.roster) if kernel.who.role is Role.SEED else 0,
            slower=self.slower,
            wasted=dict(status.wasted),
            vote=self._releases.agreement.mine,
            progress=status.work.progress(now),
        )

    def _seal(self, beat: Beat, limit: Limit) -> bytes:
        """Seal a heartbeat with as much of it as fits beside a membership: fields for people go first, then
        addresses, then learners' fields about a round, and derived fields."""
        less: tuple[dict[str, object], ...] = (
            {"hardware": ""},
            {"fetching": None, "wasted": {}, "progress": None},
            {"lag": Lag()},
            {"addresses": beat.addresses[:1]},
            {"addresses": ()},
            {"closed": None, "vote": None},
            {"name": "", "state": ""},
        )
        for left_out in less:
            try:
                return self._kernel.seal(beat, limit)
            except wire.WireError:
                beat = msgspec.structs.replace(beat, **left_out)
        return self._kernel.seal(beat, limit)
