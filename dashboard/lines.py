"""The event list: the newest sentences; one that repeats is counted instead of listed again.

Each line remembers the revision at which it last changed, so that a reader asks for what is newer.
"""

from __future__ import annotations

import msgspec

from dashboard.sentences import News
from dashboard.text import TEXT_LIMIT, clean, moment, proper, whole
from dashboard.views import Line

RECENT = 6
"""Newest lines among which a repeated sentence is counted instead of listed again."""

WIRE = 500
"""Sentences of a full view: as many as a page keeps; /api/events has them all."""

ABOUT = 16
"""Peers that a sentence is about; the text names no more."""


class ToldLine(msgspec.Struct):
    key: str
    revision: int
    line: Line


class Lines(msgspec.Struct):
    most: int = 1000
    told: int = 0
    """Id of the newest line."""
    kept: list[ToldLine] = []
    """Oldest first."""

    def say(self, at: float, news: News, revision: int) -> None:
        key = clean(news.key, 160)
        start = max(len(self.kept) - RECENT, 0)
        place = next((place for place, told in enumerate(self.kept[start:], start) if told.key == key), None)
        if place is None:
            self.told += 1
        same = self.kept.pop(place).line if place is not None else None
        line = Line(
            id=same.id if same else self.told,
            at=at,
            level=news.level,
            text=clean(news.text, TEXT_LIMIT),
            count=min(same.count + 1, 10**9) if same else 1,
            peers=tuple(peer for peer in news.peers[:ABOUT] if proper(peer)),
        )
        self.kept.append(ToldLine(key, revision, line))
        if len(self.kept) > self.most + RECENT:  # a batch at a time: the front of a list is slow to take from
            del self.kept[: len(self.kept) - self.most]

    def view(self, since: int = 0, peer: str | None = None, most: int | None = None) -> tuple[Line, ...]:
        """Sentences added or repeated after revision `since`, oldest first; about one peer, or about
        anything."""
        fresh: list[Line] = []
        for told in reversed(self.kept[-self.most :]):
            if told.revision <= since or len(fresh) == (most or self.most):
                break
            if peer is None or peer in told.line.peers:
                fresh.append(told.line)
        return tuple(reversed(fresh))

    def mend(self, most: int) -> None:
        """Bring a part that was read from a snapshot to the bounds of a fold."""
        self.most, self.told = most, whole(self.told)
        self.kept = self.kept[-most:]
        for told in self.kept:
            line = told.line
            told.key, told.revision = clean(told.key, 160), whole(told.revision)
            told.line = Line(
                id=whole(line.id),
                at=moment(line.at),
                level=line.level,
                text=clean(line.text, TEXT_LIMIT),
                count=whole(line.count),
                peers=tuple(peer for peer in line.peers[:ABOUT] if proper(peer)),
            )
