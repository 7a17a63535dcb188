"""One clock for the events of many peers: the time at which an event came in.

Whoever keeps a journal stamps what it saw itself (heartbeats that it heard, releases, verdicts); what others
report carries their clocks, which may be off by hours. The line moves by the keeper's stamps alone and never
goes back; an event of somebody else happened when the line says. Until the first own stamp there is nothing
better than the others' clocks; that stamp may set the line back, once. Not handled here: a keeper whose own
clock is set back while it writes; the line stands until it catches up.
"""

from __future__ import annotations

import msgspec

from dashboard.text import moment
from swarm import events as happened
from swarm.types import PeerId

NEAR = 5.0
"""Seconds by which a foreign stamp may differ and still be taken as it is: it is finer than the last own
one."""


class Timeline(msgspec.Struct):
    now: float = 0.0
    keeper: PeerId | None = None
    """The peer whose stamps count: the last that stamped what it saw itself."""

    def take(self, event: happened.Event) -> float:
        """The time after this event."""
        own = type(event) not in _REPORTED
        if own and self.keeper is None:
            self.now = moment(event.at)
        elif own or self.keeper is None or event.peer == self.keeper:
            self.now = max(self.now, moment(event.at))
        if own:
            self.keeper = event.peer
        return self.now

    def when(self, event: happened.Event) -> float:
        """When an event happened that was just taken."""
        return moment(event.at) if abs(event.at - self.now) <= NEAR else self.now

    def begin(self, now: float) -> None:
        """Continue by another clock, which says `now`: its first stamp sets the line, back too."""
        self.now, self.keeper = min(self.now, now), None

    def mend(self) -> None:
        """Bring a part that was read from a snapshot to the bounds of a fold."""
        self.now = moment(self.now)


_REPORTED = frozenset(happened.GOSSIPED)
