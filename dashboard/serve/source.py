"""The StateSource protocol: where a dashboard gets its SwarmState from. Feed (a running swarm) and
JournalReplay (a journal) implement it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import NamedTuple, Protocol

from dashboard.fold.state import SwarmState
from dashboard.views import Span


class Moment(NamedTuple):
    """The SwarmState at a time; it must not be changed."""

    state: SwarmState
    now: float
    quiet: float
    """Seconds since the last message of another peer, or since the start; in a replay, since the last
    event."""
    span: Span | None
    """The times that a replay covers; None when live."""


class StateSource(Protocol):
    live: bool
    readers: int
    """Open streams; the application that opens one counts it."""

    @property
    def room(self) -> int:
        """Streams that may be opened beside those that are."""
        ...

    def moment(self, at: float | None = None) -> Moment:
        """The state now; of a replay, at a journal time, by default its end."""
        ...

    def updates(self, at: float | None = None, speed: float = 1.0) -> AsyncIterator[str]:
        """JSON StateViews, the first one full, until `close`; a replay starts at `at`, by default its end,
        and runs `speed` times as fast."""
        ...

    def open(self) -> None:
        """Allow streams (again)."""
        ...

    def close(self) -> None:
        """End all streams soon."""
        ...
