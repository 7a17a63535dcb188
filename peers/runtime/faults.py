"""Emits Faulted at first and each 60 s while a part fails, Recovered when it works.

FaultReport    one part that fails again and again: Faulted at first and each minute, Recovered when it works
FaultReports   of a learner: Faulted each time, one Recovered a part when a step is taken again
"""

from __future__ import annotations

from peers.runtime.host import Host
from swarm import events
from swarm.protocol import Part

AGAIN = 60.0
"""Seconds after which a failure that goes on is told again, with its newest reason: windows that came later
hear of it, too."""


class FaultReport:
    def __init__(self, host: Host, part: Part) -> None:
        self._host, self._part = host, part
        self._failing: tuple[float, float] | None = None
        """Since when, and when it was last told."""

    def tell(self, detail: str) -> None:
        now = self._host.now()
        since, told = self._failing or (now, now - AGAIN)
        if now - told >= AGAIN:
            self._host.emit(events.Faulted, part=self._part, detail=detail)
            told = now
        self._failing = (since, told)

    def over(self) -> None:
        """It works, again or as before."""
        if self._failing is not None:
            self._host.emit(
                events.Recovered, part=self._part, seconds=round(self._host.now() - self._failing[0], 2)
            )
            self._failing = None


class FaultReports:
    def __init__(self, host: Host) -> None:
        self._host = host
        self._since: dict[Part, float] = {}
        """By part, the first time since the last step."""

    def tell(self, part: Part, detail: str) -> None:
        self._since.setdefault(part, self._host.now())
        self._host.emit(events.Faulted, part=part, detail=detail)

    def over(self) -> None:
        """A step was taken."""
        for part, began in self._since.items():
            self._host.emit(events.Recovered, part=part, seconds=round(self._host.now() - began, 2))
        self._since = {}
