"""The roster: which peers are alive and which learners take groups, from heartbeats and receipts.

A heartbeat of a newer incarnation, or a later one of the same, replaces the known one; old heartbeats that
gossip delivers late are ignored, and so is a single old one of an unknown peer, which may be gone. A peer
that is silent for longer than the run's patience is lost until its next heartbeat. A learner that does not
accept a group gets nothing for a pause, then one group at a time until it accepts one; the pause grows while
it accepts none.
"""

from __future__ import annotations

import math
import random
from collections import OrderedDict, deque
from collections.abc import Iterator
from dataclasses import dataclass
from statistics import median_low

from swarm.core.beat_pace import granted
from swarm.core.intake.deliveries import pause
from swarm.limits import RECORD_SECONDS, remember
from swarm.protocol import RESTING, ROLES, Phase, Role
from swarm.types import Beat, PeerId


@dataclass(slots=True)
class KnownPeer:
    """A peer that is alive, and the groups that were sent to it."""

    beat: Beat
    received: float
    """When its last heartbeat arrived, unix seconds."""
    credit: int
    """Groups it asks of this sampler: from its newest heartbeat or receipt."""
    in_flight: int = 0
    """Groups on their way to it, which its credit does not count yet."""
    pause: float = 0.0
    """Seconds of its current pause; 0: it takes groups."""
    until: float = 0.0
    """When that pause ends, in seconds of a monotonic clock."""
    phased: tuple[float, int] = 0.0, 0
    """When a learner came to this phase at this version, or began to sync: unix seconds, and counted by
    Roster.changes."""

    def ready(self, now: float) -> bool:
        """Whether a group may be sent to it; after a pause one at a time."""
        return not self.pause or (now >= self.until and not self.in_flight)

    def open(self, now: float) -> int:
        """Groups that may still be sent to it, a learner."""
        if not self.ready(now):
            return 0
        return min(1, self.credit) if self.pause else self.credit - self.in_flight

    def spares(self, now: float) -> bool:
        """Whether an urgent group may be sent to it, a learner that asks for none."""
        return not self.in_flight and self.ready(now) and self.beat.phase not in ELSEWHERE


REMEMBERED = 1024
"""Departed peers whose last heartbeat is remembered, of members and of others each: a late one arrives within
seconds, and strangers that come and go displace no member. Also peers whose clocks are remembered: releases
outlive their publishers."""

STRANGERS = 2048
"""Known peers without membership or deliveries: keys cost nothing. A further one replaces the one that was
silent for longest."""

CLOCK = 60.0
"""Seconds by which clocks may differ before ages are counted around it: gossip delays a heartbeat by seconds,
and a window has half an hour."""

GHOST = RECORD_SECONDS + CLOCK
"""Seconds by which the first heartbeat of a peer may be late: the board keeps one for two minutes. A later
one is from a peer that is gone, or has a wrong clock: then the next heartbeat is as late."""

ELSEWHERE = (*RESTING, Phase.CATCHING_UP, Phase.SYNCING)
"""Phases in which a learner's version says nothing about the others'."""

CLOCKS = 8
"""Heartbeats by which a clock is judged: the fastest one is the most accurate."""


def share(credit: int, takers: int, rng: random.Random) -> int:
    """This sampler's part of a credit that `takers` samplers share. Rounded at random, so that a hundred
    samplers do not all take the last unit."""
    return int(credit / max(1, takers) + rng.random())


class Roster:
    """The peers that are alive. Times are in unix seconds, but for those of pauses: a clock that is set back
    by an hour makes none an hour long."""

    def __init__(self, patience: float, rng: random.Random) -> None:
        self._patience, self._rng = patience, rng
        self._known: dict[PeerId, KnownPeer] = {}
        self._learners: dict[PeerId, KnownPeer] = {}
        """Those of them that are learners: a few of a thousand peers, looked at for every release."""
        self.changes = 0
        """Number of changes by learners' heartbeats and departures: conclusions from them hold until it
        changes."""
        self._strangers: OrderedDict[PeerId, None] = OrderedDict()
        """Unproven peers among them, the one that was silent for longest first."""
        self._left: dict[bool, OrderedDict[PeerId, tuple[int, int]]] = {
            True: OrderedDict(),
            False: OrderedDict(),
        }
        """Is it a member by its role? -> departed peer -> incarnation and number of its last heartbeat:
        gossip may deliver an older one later."""
        self._late: OrderedDict[PeerId, tuple[int, int, float]] = OrderedDict()
        """Peer that is not known -> incarnation and number of a heartbeat that was late, and by how much."""
        self._clocks: OrderedDict[PeerId, tuple[int, deque[float]]] = OrderedDict()
        """Peer -> incarnation, and how far its clock was ahead of mine when its last heartbeats arrived."""

    def __iter__(self) -> Iterator[tuple[PeerId, Beat]]:
        return ((peer, known.beat) for peer, known in self._known.items())

    def __len__(self) -> int:
        return len(self._known)

    def __contains__(self, peer: PeerId) -> bool:
        return peer in self._known

    def crowd(self) -> int:
        """The largest number of peers that a seed here counts; 0 without a seed."""
        seeds = (known.beat.hears for known in self._known.values() if known.beat.role is Role.SEED)
        return max(seeds, default=0)

    def proven(self, peer: PeerId) -> bool:
        """Whether a peer that is alive is more than a stranger."""
        return peer in self._known and peer not in self._strangers

    def beat(self, peer: PeerId) -> Beat | None:
        """The newest heartbeat of a peer that is alive; None for any other."""
        known = self._known.get(peer)
        return known.beat if known else None

    def silent(self, peer: PeerId, now: float) -> float:
        """Seconds since the last heartbeat of a peer that is alive."""
        return now - self._known[peer].received

    def receive(self, peer: PeerId, beat: Beat, now: float, proven: bool = True) -> bool:
        """Record a heartbeat. False when it is older than the known one, or too old for an unknown peer.
        `proven`: a member, or a peer that has delivered; strangers never replace one."""
        known = self._known.get(peer)
        if (beat.incarnation, beat.seq) <= self._newest(peer) or (
            known is None and self._is_ghost(peer, beat, now)
        ):
            return False
        credit = share(beat.credit, beat.takers, self._rng)
        if known is None:
            known = self._known[peer] = KnownPeer(beat, now, credit, phased=(now, self.changes))
        else:
            another = beat.version != known.beat.version and beat.phase is not Phase.SYNCING
            if another or beat.phase is not known.beat.phase:
                known.phased = now, self.changes
            known.beat, known.received, known.credit = beat, now, credit
        self._forget_learner(peer)
        if beat.role is Role.LEARNER:
            self._learners[peer] = known
            self.changes += 1
        self._time(peer, beat, now)
        self._strangers.pop(peer, None)
        if not proven:
            self._strangers[peer] = None
            if len(self._strangers) > STRANGERS:
                self.forget(next(iter(self._strangers)))
        return True

    def _newest(self, peer: PeerId) -> tuple[int, int]:
        if (known := self._known.get(peer)) is not None:
            return known.beat.incarnation, known.beat.seq
        return max(left.get(peer, (-1, -1)) for left in self._left.values())

    def _is_ghost(self, peer: PeerId, beat: Beat, now: float) -> bool:
        late = now - beat.at + self.ahead(peer)
        if late <= GHOST:
            return False
        before = self._late.get(peer, (0, 0, math.inf))
        if beat.incarnation == before[0] and beat.seq > before[1] and abs(late - before[2]) <= CLOCK:
            return False
        remember(self._late, peer, (beat.incarnation, beat.seq, late), REMEMBERED)
        return True

    def _time(self, peer: PeerId, beat: Beat, now: float) -> None:
        incarnation, clocks = self._clocks.pop(peer, (beat.incarnation, deque[float](maxlen=CLOCKS)))
        if incarnation != beat.incarnation:
            clocks.clear()
        clocks.append(beat.at - now)
        self._clocks[peer] = beat.incarnation, clocks
        if len(self._clocks) > REMEMBERED:
            strange = (one for one in self._clocks if self._is_strange(one))
            del self._clocks[next(strange, next(iter(self._clocks)))]

    def _is_strange(self, peer: PeerId) -> bool:
        return peer in self._strangers or not (peer in self._known or peer in self._left[True])

    def ahead(self, peer: PeerId) -> float:
        """Seconds by which a peer's clock is ahead of this one; 0 within CLOCK, and where nothing is known. A
        heartbeat's delay makes the clock look late, so the earliest one counts."""
        _, clocks = self._clocks.get(peer, (0, ()))
        return found if abs(found := max(clocks, default=0.0)) > CLOCK else 0.0

    def wrong(self) -> float:
        """Seconds by which this clock is ahead of the median of all, itself included; 0 within CLOCK, and
        with fewer than two others, where there is no majority."""
        others = [self.ahead(peer) for peer in self._known]
        return -median_low([0.0, *others]) if len(others) > 1 else 0.0

    def forget(self, peer: PeerId) -> None:
        """Remove a peer that left or was lost; its older heartbeats stay ignored."""
        self._forget_learner(peer)
        self._strangers.pop(peer, None)
        if (known := self._known.pop(peer, None)) is not None:
            left = self._left[ROLES[known.beat.role].member]
            remember(left, peer, (known.beat.incarnation, known.beat.seq), REMEMBERED)

    def _forget_learner(self, peer: PeerId) -> None:
        self.changes += self._learners.pop(peer, None) is not None

    def expire(self, now: float) -> tuple[list[tuple[PeerId, float]], float]:
        """Remove peers that were silent for too long: returns them, with the seconds of their silence, and
        the time until which no other is. Patience is the run's, and longer in proportion for peers with a
        slower pace."""
        lost: list[tuple[PeerId, float]] = []
        until = math.inf
        for peer, known in self._known.items():
            ends = known.received + self._patience * granted(known.beat)
            if now > ends:
                lost.append((peer, now - known.received))
            else:
                until = min(until, ends)
        for peer, _ in lost:
            self.forget(peer)
        return lost, until

    def phased(self, peer: PeerId) -> tuple[float, int]:
        """When a learner that is alive came to its phase: unix seconds, and counted by `changes`."""
        return self._learners[peer].phased

    def learners(self) -> list[PeerId]:
        """Learners that are alive, by id."""
        return sorted(self._learners)

    def holders(self, version: int) -> list[PeerId]:
        """Peers that may hold a release's bytes: all at that version or beyond; strangers last, mirrors
        first, then learners and seeds."""
        found = [
            (peer in self._strangers, known.beat.mirror < version, ROLES[known.beat.role].asked, peer)
            for peer, known in self._known.items()
            if max(known.beat.version, known.beat.mirror) >= version
        ]
        return [peer for *_, peer in sorted(found)]

    def credit(self, now: float) -> int:
        """Groups that all learners together can still be sent."""
        return sum(max(0, known.open(now)) for known in self._learners.values())

    def choose(self, now: float, urgent: bool = False) -> PeerId | None:
        """Draw a learner in proportion to its credit, and count one group as on its way to it. None when no
        learner has credit; an `urgent` group then goes to one without credit, one at a time: its room is
        larger than its credit (swarm.core.intake.batcher)."""
        found = [(peer, self._learners[peer].open(now)) for peer in self.learners()]
        open_ = [(peer, credit) for peer, credit in found if credit > 0]
        if urgent and not open_:
            open_ = [(peer, 1) for peer, _ in found if self._learners[peer].spares(now)]
        if not open_:
            return None
        (peer,) = self._rng.choices([peer for peer, _ in open_], [credit for _, credit in open_])
        self._known[peer].in_flight += 1
        return peer

    def sent(self, peer: PeerId, now: float) -> bool:
        """Count one more group as on its way to `peer`. False when nothing may be sent to it now."""
        known = self._known.get(peer)
        if known is None or not known.ready(now):
            return False
        known.in_flight += 1
        return True

    def acknowledged(self, peer: PeerId, credit: int | None) -> None:
        """Count a group as arrived, with the credit in its receipt, or as lost on the way (None)."""
        if (known := self._known.get(peer)) is not None:
            known.in_flight = max(0, known.in_flight - 1)
            known.credit = known.credit if credit is None else credit

    def start_pause(self, peer: PeerId, sent: float, now: float) -> bool:
        """Pause a learner that did not take a group sent at `sent`. False when it is paused already: groups
        that were on their way together cause one pause."""
        known = self._known.get(peer)
        if known is None or sent < known.until:
            return False
        known.pause = pause(known.pause, self._rng)
        known.until = now + known.pause
        return True

    def end_pause(self, peer: PeerId, sent: float) -> None:
        """End the pause of a learner that took a group sent at `sent`; one sent before the pause proves
        nothing."""
        if (known := self._known.get(peer)) is not None and sent >= known.until:
            known.pause = 0.0

    def wait(self, now: float) -> float:
        """Seconds until the next pause ends; infinite when there is none."""
        return min(
            (known.until - now for known in self._known.values() if known.pause and known.until > now),
            default=math.inf,
        )
