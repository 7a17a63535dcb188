"""A peer's heartbeats: what it says of itself now and then, and at once where others wait for news of it.

    PeerStatus, releases, roster -> Beat -- sealed --> topic `beat`, those of samplers `beat/sampler`
                                                   --> the board (peers.runtime.postings)

Invariant: a heartbeat says how long its peer waits until the next one, in times of the run's pace. Not
handled here: what others' heartbeats are worth (peers.runtime.host), how long that is (swarm.core.beat_pace).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from peers.runtime.changes import Changes
from swarm import events
from swarm.core.beat_pace import slower
from swarm.frames import wire
from swarm.limits import BEAT_LIMIT, RECORD_LIMIT, Limit
from swarm.protocol import PHASES, ROLES, Role, Topic
from swarm.types import Beat, Digest, Lag, PeerId

if TYPE_CHECKING:
    from collections.abc import Callable

    from peers.runtime.host import Host


class Heartbeats:
    """One peer's."""

    def __init__(self, host: Host, met: Callable[[PeerId, Beat], None]) -> None:
        """`met` hears each that is sent."""
        self._host, self._met = host, met
        self._due, self._changes, self._seq = False, Changes(), 0
        self.slower = 1.0
        """How many times as long as the run's pace I wait."""

    def now(self) -> None:
        """Send one at once."""
        self._due = True
        self._changes.wake()

    async def send_forever(self) -> None:
        pace, rng = self._host.config.run.pace.beat, self._host.rng
        while True:
            self._due = False
            is_one_of_many = self._topic() is Topic.BEAT_SAMPLER
            self.slower = slower(self._host.roster.crowd()) if is_one_of_many else 1.0
            await self.send()
            if not self._due:
                await self._changes.wait(pace * self.slower * rng.uniform(1.0, 1.25))

    async def send(self) -> None:
        host, beat = self._host, self._beat()
        self._met(host.ports.me, beat)
        if host.who.observes:
            host.emit(events.Heard, subject=host.ports.me, beat=beat)
        await host.ports.gossip.publish(host.topic(self._topic()), self._seal(beat, BEAT_LIMIT))

    def sealed(self) -> bytes:
        """As of now, for the board, whose records are shorter than what gossip carries."""
        return self._seal(self._beat(), BEAT_LIMIT._replace(sealed=RECORD_LIMIT))

    def _topic(self) -> Topic:
        host = self._host
        return Topic.BEAT if host.status.mirror >= 0 else ROLES[host.who.role].heartbeat

    def _beat(self) -> Beat:
        host = self._host
        now, status, limits = host.now(), host.status, host.config.peer.limits
        self._seq += 1
        return Beat(
            name=host.who.name,
            role=host.who.role,
            incarnation=host.who.incarnation,
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
            addresses=host.ports.addresses()[:2],
            hardware=host.who.hardware,
            at=now,
            closed=status.closed,
            early=status.early,
            astray=status.astray,
            mean=status.mean,
            accuracy=status.accuracy,
            accuracy_before=status.accuracy_before,
            mirror=status.mirror,
            unkept=status.unkept,
            upload=limits.upload,
            download=limits.download,
            fetching=status.taking() or host.releases.coming(),
            revoked=host.revocations.number,
            speed=float(f"{status.speed:.3g}"),
            hears=len(host.roster) if host.who.role is Role.SEED else 0,
            slower=self.slower,
            wasted=dict(status.wasted),
            denied=host.releases.doubts.votes.denied(),
        )

    def _seal(self, beat: Beat, limit: Limit) -> bytes:
        """Seal a heartbeat with as much of it as fits beside a membership: what only people read goes first,
        then addresses, then what learners say to each other in a round, and what follows from the rest."""
        less: tuple[dict[str, object], ...] = (
            {"hardware": ""},
            {"fetching": None, "wasted": {}},
            {"lag": Lag()},
            {"addresses": beat.addresses[:1]},
            {"addresses": ()},
            {"closed": None, "denied": None, "mean": b""},
            {"name": "", "state": ""},
        )
        for left_out in less:
            try:
                return self._host.seal(beat, limit)
            except wire.WireError:
                beat = msgspec.structs.replace(beat, **left_out)
        return self._host.seal(beat, limit)
