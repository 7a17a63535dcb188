"""Incidents of the last day: problems, their beginning and end, and their causes.

The problems of each slot of time come in; an incident is a warning or an error while it lasts. One that comes
again within AGAIN seconds continues. Bounded: the oldest go first. Not handled here: the problems themselves
(dashboard.diagnosis), and notes, which need no action.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from dashboard.text import clean, moment, proper
from dashboard.views import Incident, Level, Problem

DAY = 86400.0
"""Seconds for which an incident is kept after its end."""

AGAIN = 60.0
"""Seconds after an end in which the same problem is the same incident: a flapping problem is one."""

MOST = 256
"""Incidents kept: more than a person reads of a day."""

PEERS = 8
"""Peers that an incident names."""


class KeptIncident(msgspec.Struct):
    key: str
    level: Level
    text: str
    cause: str
    begin: float
    seen: float
    """When it was last found."""
    open: bool = True
    peers: tuple[str, ...] = ()

    def view(self) -> Incident:
        return Incident(
            key=self.key,
            level=self.level,
            text=self.text,
            cause=self.cause,
            begin=self.begin,
            end=None if self.open else self.seen,
            peers=self.peers,
        )


class Incidents(msgspec.Struct):
    kept: list[KeptIncident] = []
    """In the order in which they began."""

    def take(self, problems: Iterable[Problem], now: float) -> None:
        """Record the problems at `now`."""
        grave = {problem.key: problem for problem in problems if problem.level != "info"}
        for known in self.kept:
            if (problem := grave.get(known.key)) is not None and now - known.seen <= AGAIN:
                del grave[known.key]
                _go_on(known, problem, now)
            elif known.open:
                known.open = False
        for problem in grave.values():
            begin = min(problem.since, now) if problem.since is not None else now
            incident = KeptIncident(problem.key, problem.level, "", "", moment(begin), now)
            _go_on(incident, problem, now)
            self.kept.append(incident)
        self.kept = [known for known in self.kept if known.open or now - known.seen <= DAY][-MOST:]

    def view(self) -> tuple[Incident, ...]:
        return tuple(incident.view() for incident in self.kept)

    def sanitize(self) -> None:
        """Clip a part from a snapshot to the bounds that a fold keeps."""
        self.kept = self.kept[-MOST:]
        for known in self.kept:
            known.key, known.text, known.cause = (
                clean(known.key, 160),
                clean(known.text, 400),
                clean(known.cause, 400),
            )
            known.begin, known.seen = moment(known.begin), moment(known.seen)
            known.peers = tuple(peer for peer in known.peers[:PEERS] if proper(peer))


def _go_on(incident: KeptIncident, problem: Problem, now: float) -> None:
    """The newest sentences describe it; the level is the worst that it had."""
    incident.level = "error" if "error" in (incident.level, problem.level) else problem.level
    incident.text, incident.cause, incident.peers = problem.text, problem.cause, problem.peers[:PEERS]
    incident.seen, incident.open = now, True
