"""Simulated links: how long a message takes between two peers, and whether it passes at all.

In come the latency law, the bandwidth and the fault script's verbs; out come answers to the memory network's
three questions (`swarm.net.in_memory.Links`). Every pair of peers has the same law; a fault belongs to an
unordered pair. `partition` loses what is sent until `repair`; `hold` keeps it until `release`, when
everything held arrives at once and in order. Not handled: bandwidth shared between messages (each one has the
whole link), routing through third peers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from random import Random

from swarm.config import DelayLaw
from swarm.core.delays import draw
from swarm.types import PeerId


class SimLinks:
    """`bandwidth` in bytes per second."""

    def __init__(self, latency: DelayLaw, bandwidth: float, rng: Random) -> None:
        self._latency = latency
        self._bandwidth = bandwidth
        self._rng = rng
        self._cut: set[tuple[PeerId, PeerId]] = set()
        self._held: dict[tuple[PeerId, PeerId], list[Callable[[], None]]] = {}

    @property
    def whole(self) -> bool:
        """No fault is set anywhere."""
        return not (self._cut or self._held)

    def seconds(self, sender: PeerId, receiver: PeerId, size: int) -> float:
        return draw(self._latency, self._rng) + size / self._bandwidth

    def open(self, sender: PeerId, receiver: PeerId) -> bool:
        return not self._cut or _pair(sender, receiver) not in self._cut

    def when_released(self, sender: PeerId, receiver: PeerId, deliver: Callable[[], None]) -> bool:
        """While the pair is held: keep `deliver` for its release and return True."""
        waiting = self._held.get(_pair(sender, receiver)) if self._held else None
        if waiting is None:
            return False
        waiting.append(deliver)
        return True

    def partition(self, some: Iterable[PeerId], others: Iterable[PeerId]) -> None:
        self._cut.update(_pairs(some, others))

    def repair(self, some: Iterable[PeerId], others: Iterable[PeerId]) -> None:
        self._cut.difference_update(_pairs(some, others))

    def hold(self, some: Iterable[PeerId], others: Iterable[PeerId]) -> None:
        for pair in _pairs(some, others):
            self._held.setdefault(pair, [])

    def release(self, some: Iterable[PeerId], others: Iterable[PeerId]) -> None:
        for pair in _pairs(some, others):
            for deliver in self._held.pop(pair, []):
                deliver()


def _pair(a: PeerId, b: PeerId) -> tuple[PeerId, PeerId]:
    return (a, b) if a < b else (b, a)


def _pairs(some: Iterable[PeerId], others: Iterable[PeerId]) -> list[tuple[PeerId, PeerId]]:
    right = list(others)
    return [_pair(a, b) for a in some for b in right if a != b]
