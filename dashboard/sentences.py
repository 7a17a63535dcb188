"""Events as plain sentences, for the page and the terminal.

In comes an event and a way to name peers, out goes a Line or None when the event is not news by itself (heartbeats, counts,
training steps: the table and the curves show those). Lines with one key are the same news again and share a line with a count.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from dashboard.text import TEXT_LIMIT, clean, duration
from swarm import events as happened
from swarm.types import PeerId, Verdict

Namer = Callable[[PeerId], str]


class News(NamedTuple):
    key: str
    """Of two pieces of news with one key only the newest is kept, with a count."""
    level: str
    """`info`, `warning` or `error`."""
    text: str


@dataclass(slots=True)
class Line:
    """News in the list: told `count` times, last at `at` (unix seconds)."""

    id: int
    at: float
    news: News
    count: int
    revision: int

    def row(self) -> dict[str, object]:
        return {"id": self.id, "at": self.at, "level": self.news.level, "text": self.news.text, "count": self.count}


def tell(event: happened.Event, name: Namer) -> News | None:
    """The sentence of an event that needs no memory to be told."""
    teller = _TELLERS.get(type(event))
    if teller is None:
        return None
    news = teller(event, name)
    return News(news.key, news.level, clean(news.text, TEXT_LIMIT)) if news else None


def _left(event: happened.Left, name: Namer) -> News:
    return News(f"left {event.peer}", "info", f"{name(event.peer)} left: {event.reason or 'no reason given'}.")


def _lost(event: happened.Lost, name: Namer) -> News:
    return News(f"lost {event.subject}", "warning", f"{name(event.subject)} has been silent for {duration(event.silent)}.")


def _judged(event: happened.Judged, name: Namer) -> News | None:
    if event.verdict is Verdict.ADMIT:
        return None
    text = f"A group of {name(event.sampler)} was refused: {event.verdict}"
    text += f" ({event.detail})." if event.detail else f", {event.versions} versions and {duration(event.seconds)} old."
    return News(f"judged {event.sampler} {event.verdict}", "warning", text)


def _released(event: happened.Released, name: Namer) -> News:
    release = event.release
    made = f"{_some(release.groups, 'group')} at {_some(release.learners, 'learner')}" if release.groups else "the start"
    return News("released", "info", f"Version {release.version} was released by {name(release.publisher)}: {made}.")


def _broke(event: happened.RoundBroke, name: Namer) -> News:
    return News(f"broke {event.reason}", "warning", f"The round for version {event.version} broke: {event.reason}.")


def _snapped(event: happened.Snapped, name: Namer) -> News:
    text = f"{name(event.peer)} had other weights than release {event.version} and took the release's."
    return News(f"snapped {event.peer}", "warning", text)


def _caught_up(event: happened.CaughtUp, name: Namer) -> News:
    text = f"{name(event.peer)} was {_some(event.behind, 'version')} behind and caught up with version {event.version}."
    return News(f"caught {event.peer}", "info", text)


def _evaluated(event: happened.Evaluated, name: Namer) -> News:
    text = f"Version {event.version} solves {event.accuracy:.1%} of {_some(event.tasks, 'held-out task')}."
    return News("evaluated", "info", text)


def _saved(event: happened.Saved, name: Namer) -> News:
    return News(f"saved {event.peer}", "info", f"{name(event.peer)} saved a checkpoint of version {event.version}.")


def _faulted(event: happened.Faulted, name: Namer) -> News:
    text = f"{event.part} of {name(event.peer)} broke and is being replaced: {event.detail}"
    return News(f"faulted {event.peer} {event.part}", "error", text)


def _recovered(event: happened.Recovered, name: Namer) -> News:
    text = f"{event.part} of {name(event.peer)} is back after {duration(event.seconds)}."
    return News(f"recovered {event.peer} {event.part}", "info", text)


def _rejected(event: happened.Rejected, name: Namer) -> News:
    text = f"{event.kind} from {name(event.sender)} was not believed: {event.reason}."
    return News(f"rejected {event.sender} {event.kind}", "warning", text)


def _noted(event: happened.Noted, name: Namer) -> News:
    level = event.level if event.level in ("warning", "error") else "info"
    return News(f"noted {event.text}", level, event.text)


def _some(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


_TELLERS: dict[type[happened.Event], Callable[..., News | None]] = {
    happened.Left: _left,
    happened.Lost: _lost,
    happened.Judged: _judged,
    happened.Released: _released,
    happened.RoundBroke: _broke,
    happened.Snapped: _snapped,
    happened.CaughtUp: _caught_up,
    happened.Evaluated: _evaluated,
    happened.Saved: _saved,
    happened.Faulted: _faulted,
    happened.Recovered: _recovered,
    happened.Rejected: _rejected,
    happened.Noted: _noted,
}
