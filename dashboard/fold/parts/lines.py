"""The event list: the newest sentences; one that repeats is counted instead of listed again.

Each line remembers the revision at which it last changed, so that a reader asks for what is newer.
"""

from __future__ import annotations

import msgspec

from dashboard.fold.sentences import News
from dashboard.text import TEXT_LIMIT, clean, moment, proper, whole
from dashboard.views import SentenceView

RECENT = 6
"""Newest lines among which a repeated sentence is counted instead of listed again."""

WIRE = 500
"""Sentences in a full view: as many as the dashboard keeps; /api/events has all of them."""

ABOUT = 16
"""Most peers that a sentence is about; the text names no more."""


class KeptLine(msgspec.Struct):
    key: str
    revision: int
    line: SentenceView


class Lines(msgspec.Struct):
    most: int = 1000
    told: int = 0
    """Id of the newest line."""
    kept: list[KeptLine] = []
    """Oldest first."""

    def add(self, at: float, news: News, revision: int) -> None:
        key = clean(news.key, 160)
        start = max(len(self.kept) - RECENT, 0)
        place = next((place for place, kept in enumerate(self.kept[start:], start) if kept.key == key), None)
        if place is None:
            self.told += 1
        same = self.kept.pop(place).line if place is not None else None
        line = SentenceView(
            id=same.id if same else self.told,
            at=at,
            level=news.level,
            text=clean(news.text, TEXT_LIMIT),
            count=min(same.count + 1, 10**9) if same else 1,
            peers=tuple(peer for peer in news.peers[:ABOUT] if proper(peer)),
        )
        self.kept.append(KeptLine(key, revision, line))
        if len(self.kept) > self.most + RECENT:  # a batch at a time: the front of a list is slow to take from
            del self.kept[: len(self.kept) - self.most]

    def view(
        self, since: int = 0, peer: str | None = None, most: int | None = None
    ) -> tuple[SentenceView, ...]:
        """Sentences added or repeated after revision `since`, oldest first; about one peer, or about
        anything."""
        fresh: list[SentenceView] = []
        for kept in reversed(self.kept[-self.most :]):
            if kept.revision <= since or len(fresh) == (most or self.most):
                break
            if peer is None or peer in kept.line.peers:
                fresh.append(kept.line)
        return tuple(reversed(fresh))

    def sanitize(self, most: int) -> None:
        """Clip a part from a snapshot to the bounds that a fold keeps."""
        self.most, self.told = most, whole(self.told)
        self.kept = self.kept[-most:]
        for kept in self.kept:
            line = kept.line
            kept.key, kept.revision = clean(kept.key, 160), whole(kept.revision)
            kept.line = SentenceView(
                id=whole(line.id),
                at=moment(line.at),
                level=line.level,
                text=clean(line.text, TEXT_LIMIT),
                count=whole(line.count),
                peers=tuple(peer for peer in line.peers[:ABOUT] if proper(peer)),
            )
