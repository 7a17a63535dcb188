"""Emits Faulted events while a part of a peer fails, and Recovered when it works again.

FaultReport    one part: Faulted at the first failure and each 60 s while it fails, Recovered when it works
FaultReports   a learner's parts: Faulted at each failure, one Recovered for each part at the next step
"""

from __future__ import annotations

from peers.runtime.host import Host
from swarm import events
from swarm.protocol import Part

REPEAT_AFTER = 60.0
"""Seconds after which a lasting failure is reported again, with its newest reason: observers that joined
later hear of it, too."""


class FaultReport:
    def __init__(self, host: Host, part: Part) -> None:
        self._host, self._part = host, part
        self._failing: tuple[float, float] | None = None
        """(since when it fails, when it was last reported)."""

    def failed(self, detail: str) -> None:
        now = self._host.now()
        since, reported = self._failing or (now, now - REPEAT_AFTER)
        if now - reported >= REPEAT_AFTER:
            self._host.emit(events.Faulted, part=self._part, detail=detail)
            reported = now
        self._failing = (since, reported)

    def recovered(self) -> None:
        """The part works. Call it after every success."""
        if self._failing is not None:
            self._host.emit(
                events.Recovered, part=self._part, seconds=round(self._host.now() - self._failing[0], 2)
            )
            self._failing = None


class FaultReports:
    def __init__(self, host: Host) -> None:
        self._host = host
        self._since: dict[Part, float] = {}
        """Part -> its first failure since the last step."""

    def failed(self, part: Part, detail: str) -> None:
        self._since.setdefault(part, self._host.now())
        self._host.emit(events.Faulted, part=part, detail=detail)

    def recovered(self) -> None:
        """All parts work: a step was taken."""
        for part, began in self._since.items():
            self._host.emit(events.Recovered, part=part, seconds=round(self._host.now() - began, 2))
        self._since = {}
