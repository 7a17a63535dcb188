"""One clock for the events of many peers: the time at which an event arrived.

The peer that writes a journal (the keeper) stamps its own observations: heartbeats, releases, verdicts.
Events that others report carry their clocks, which may be off by hours. Only the keeper's stamps advance the
timeline, which never goes back; an event of another peer gets the timeline's time. Until the keeper's first
stamp the others' clocks are used; that stamp may set the timeline back, once. Not handled here: a keeper
whose clock is set back while it writes; the timeline stands still until the clock catches up.
"""

from __future__ import annotations

import msgspec

from dashboard.text import moment
from swarm import events as happened
from swarm.types import PeerId

NEAR = 5.0
"""Seconds by which another peer's stamp may differ from the timeline and still be used: it is more precise
than the keeper's last stamp."""


class Timeline(msgspec.Struct):
    now: float = 0.0
    keeper: PeerId | None = None
    """The peer whose stamps count: the last one that stamped its own observation."""

    def take(self, event: happened.Event) -> float:
        """Advance the timeline by an event and return its time."""
        own = type(event) not in _REPORTED
        if own and self.keeper is None:
            self.now = moment(event.at)
        elif own or self.keeper is None or event.peer == self.keeper:
            self.now = max(self.now, moment(event.at))
        if own:
            self.keeper = event.peer
        return self.now

    def when(self, event: happened.Event) -> float:
        """When the event that was just taken happened."""
        return moment(event.at) if abs(event.at - self.now) <= NEAR else self.now

    def begin(self, now: float) -> None:
        """Continue with another clock, which shows `now`: its first stamp sets the timeline, also back."""
        self.now, self.keeper = min(self.now, now), None

    def sanitize(self) -> None:
        """Clip a part from a snapshot to the bounds that a fold keeps."""
        self.now = moment(self.now)


_REPORTED = frozenset(happened.GOSSIPED)
