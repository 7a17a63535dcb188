"""A peer's status: phase, version, credit, rates and lags. Roles write it, the heartbeat reads it."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from peers.runtime.watching.long_work import LongWork
from swarm.protocol import Phase
from swarm.types import BatchRewards, Fetching, Lag

SPAN = 30.0
"""Seconds over which rates are averaged: long enough to smooth batches, short enough to see a peer stall."""

SMOOTHING = 0.2
"""Weight of the newest value in the lags: about the last ten groups count."""


class Meter:
    """Sum of the amounts of the last SPAN seconds, per second."""

    def __init__(self) -> None:
        self._marks: deque[tuple[float, float]] = deque()
        self._sum = 0.0
        self._since: float | None = None

    def add(self, amount: float, now: float) -> None:
        if self._since is None:
            self._since = now
        self._marks.append((now, amount))
        self._sum += amount
        self._trim(now)

    def rate(self, now: float) -> float:
        self._trim(now)
        if self._since is None:
            return 0.0
        return max(0.0, self._sum) / min(SPAN, max(1.0, now - self._since))

    def _trim(self, now: float) -> None:
        while self._marks and self._marks[0][0] < now - SPAN:
            self._sum -= self._marks.popleft()[1]


@dataclass
class PeerStatus:
    phase: Phase = Phase.STARTING
    early: bool = False
    version: int = -1
    weights: str = ""
    mirror: int = -1
    unkept: bool = False
    """See swarm.types.Beat."""
    credit: int = 0
    takers: int = 1
    inbox: int = 0
    done: int = 0
    admitted: int = 0
    """Groups that learners admitted (sampler), groups that I admitted (learner); shown on this machine only,
    not in the heartbeat."""
    refused: int = 0
    accuracy: float = -1.0
    accuracy_before: float = -1.0
    judged: int = 0
    speed: float = 0.0
    """See swarm.types.Beat."""
    silence: float = 0.0
    """Seconds for which my engine, which computes, has given no sign of life; 0 while it is not missed. Shown
    on this machine only."""
    handled: int = 0
    """Tokens that I sampled, or trained on, since the start."""
    wasted: Counter[str] = field(default_factory=Counter)
    """See swarm.types.Beat."""
    closed: BatchRewards | None = None
    taking: Callable[[], Fetching | None] = lambda: None
    """The current download other than releases."""
    work: LongWork = field(default_factory=LongWork)
    groups: Meter = field(default_factory=Meter)
    tokens: Meter = field(default_factory=Meter)
    busy: Meter = field(default_factory=Meter)
    _lag: dict[str, float] = field(default_factory=dict)

    def finished(self, groups: int, tokens: int, now: float) -> None:
        self.done += groups
        self.handled += tokens
        self.groups.add(groups, now)
        self.tokens.add(tokens, now)

    def learnt(self, groups: int, seconds: float) -> None:
        """A gradient of a full batch of so many groups took so long."""
        if seconds > 0:
            new = groups / seconds
            self.speed += (SMOOTHING if self.speed else 1.0) * (new - self.speed)

    @contextmanager
    def computing(self, now: Callable[[], float]) -> Iterator[None]:
        """Count the time inside, by the port's clock, as busy."""
        start = now()
        try:
            yield
        finally:
            self.busy.add(now() - start, now())

    def lags(self, **seconds: float) -> None:
        """Blend in newly measured lags by the names of `Lag`."""
        for name, value in seconds.items():
            old = self._lag.get(name, value)
            self._lag[name] = old + SMOOTHING * (value - old)

    @property
    def lag(self) -> Lag:
        return Lag(**{name: round(value, 3) for name, value in self._lag.items()})
