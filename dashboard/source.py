"""The Source protocol: where a page gets its State from. Feed (a running swarm) and Replay (a journal)
implement it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import NamedTuple, Protocol

from dashboard.state import State
from dashboard.views import Span


class Moment(NamedTuple):
    """The state at a time, for reading only."""

    state: State
    now: float
    quiet: float
    """Seconds since the window heard anything."""
    span: Span | None
    """What a replay covers."""


class Source(Protocol):
    live: bool
    readers: int
    """Open streams; whoever opens one counts it."""

    @property
    def full(self) -> bool:
        """Whether there is no room for another stream."""
        ...

    def moment(self, at: float | None = None) -> Moment:
        """The state now; of a replay, at a journal time (its end without one)."""
        ...

    def updates(self, at: float | None = None, speed: float = 1.0) -> AsyncIterator[str]:
        """JSON StateViews, the first one full, until `close`; a replay starts at `at` and runs `speed` times
        as fast."""
        ...

    def open(self) -> None:
        """Allow streams (again)."""
        ...

    def close(self) -> None:
        """End all streams soon."""
        ...
