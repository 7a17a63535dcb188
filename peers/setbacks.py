"""What went wrong at a learner and is not over yet: a Faulted event each time, one Recovered when a step is taken again."""

from __future__ import annotations

from peers.host import Host
from swarm import events


class Setbacks:
    def __init__(self, host: Host) -> None:
        self._host = host
        self._since: dict[str, float] = {}
        """By part, the first time since the last step."""

    def tell(self, part: str, detail: str) -> None:
        self._since.setdefault(part, self._host.now())
        self._host.emit(events.Faulted, part=part, detail=detail)

    def over(self) -> None:
        """A step was taken."""
        for part, began in self._since.items():
            self._host.emit(events.Recovered, part=part, seconds=round(self._host.now() - began, 2))
        self._since = {}
