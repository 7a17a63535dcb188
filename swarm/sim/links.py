"""Simulated links: how long a message takes between two peers, and whether it passes at all.

In come the latency law, the bandwidth, the peers' lines and the fault script's verbs; out come answers to the
memory network's questions (`swarm.net.memory.network.Links`). Every pair of peers has the same law.
`partition` loses messages until `repair`, and those under way; `oneway` loses them in one direction, in which
no connection can be opened either; `slow` adds seconds to each message. `hold` keeps arriving messages until
`release`, when all of them arrive at once and in order. A large message shares the lines of its two ends with
others (swarm.sim.flows) where one of them is limited; each of the others has the whole bandwidth, as if it
were alone. Not handled: routing through third peers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from random import Random

from swarm.core.delays import draw
from swarm.net.turns import no_turn
from swarm.settings.config import DelayLaw
from swarm.sim.flows import AccessLine, Flow, Flows
from swarm.types import PeerId

SMALL = 4096
"""Bytes of a message that passes without a share of a line: all gossip, receipts and questions are that
small, and go between the packets of larger ones."""


class SimLinks:
    """`bandwidth` is the largest rate of one message, in bytes per second; `lines` are the limited ones."""

    def __init__(
        self,
        latency: DelayLaw,
        bandwidth: float,
        rng: Random,
        lines: Mapping[PeerId, AccessLine] | None = None,
    ) -> None:
        self._latency = latency
        self._bandwidth = bandwidth
        self._rng = rng
        self._flows = Flows(lines or {}, bandwidth)
        self._cut: set[tuple[PeerId, PeerId]] = set()
        """(sender, receiver)."""
        self._slow: dict[tuple[PeerId, PeerId], float] = {}
        """(sender, receiver) -> seconds."""
        self._held: dict[tuple[PeerId, PeerId], list[Callable[[], None]]] = {}

    @property
    def whole(self) -> bool:
        """No fault is set anywhere."""
        return not (self._cut or self._held)

    def seconds(self, sender: PeerId, receiver: PeerId, size: int) -> float:
        more = self._slow.get((sender, receiver), 0.0) if self._slow else 0.0
        return draw(self._latency, self._rng) + size / self._bandwidth + more

    def flow(
        self,
        sender: PeerId,
        receiver: PeerId,
        size: int,
        arrived: Callable[[], None],
        lost: Callable[[bool], None],
        departed: Callable[[], None] = no_turn,
    ) -> Flow | None:
        if size <= SMALL or sender == receiver or not self._flows.limited(sender, receiver):
            return None
        delay = self.seconds(sender, receiver, 0)
        return self._flows.start(sender, receiver, size, delay, arrived, lost, departed)

    def uplink(self, peer: PeerId) -> int:
        return self._flows.uplink(peer)

    def crash(self, peer: PeerId) -> None:
        self._flows.crash(peer)

    def open(self, sender: PeerId, receiver: PeerId) -> bool:
        return not self._cut or (sender, receiver) not in self._cut

    def when_released(self, sender: PeerId, receiver: PeerId, deliver: Callable[[], None]) -> bool:
        """While the pair is held: keep `deliver` for its release and return True."""
        waiting = self._held.get(_pair(sender, receiver)) if self._held else None
        if waiting is None:
            return False
        waiting.append(deliver)
        return True

    def partition(self, some: Sequence[PeerId], others: Sequence[PeerId]) -> None:
        self._lose({*_ways(some, others), *_ways(others, some)})

    def oneway(self, some: Sequence[PeerId], others: Sequence[PeerId]) -> None:
        """What `some` send to `others` is lost."""
        self._lose({*_ways(some, others)})

    def _lose(self, ways: set[tuple[PeerId, PeerId]]) -> None:
        self._cut |= ways
        self._flows.cut(lambda sender, receiver: not self.open(sender, receiver))

    def slow(self, some: Sequence[PeerId], others: Sequence[PeerId], seconds: float) -> None:
        for way in (*_ways(some, others), *_ways(others, some)):
            self._slow[way] = seconds

    def repair(self, some: Sequence[PeerId], others: Sequence[PeerId]) -> None:
        for way in (*_ways(some, others), *_ways(others, some)):
            self._cut.discard(way)
            self._slow.pop(way, None)

    def hold(self, some: Sequence[PeerId], others: Sequence[PeerId]) -> None:
        for pair in _pairs(some, others):
            self._held.setdefault(pair, [])

    def release(self, some: Sequence[PeerId], others: Sequence[PeerId]) -> None:
        for pair in _pairs(some, others):
            for deliver in self._held.pop(pair, []):
                deliver()


def _pair(a: PeerId, b: PeerId) -> tuple[PeerId, PeerId]:
    return (a, b) if a < b else (b, a)


def _ways(some: Sequence[PeerId], others: Sequence[PeerId]) -> list[tuple[PeerId, PeerId]]:
    return [(a, b) for a in some for b in others if a != b]


def _pairs(some: Sequence[PeerId], others: Sequence[PeerId]) -> list[tuple[PeerId, PeerId]]:
    return [_pair(a, b) for a, b in _ways(some, others)]
