"""One curve: a value per policy version, or per slot of time, in bounded memory.

Takes (x, at, value, weight) in about the order of x; when several learners report one version, its point is
their weighted mean. When a curve is full, neighbours are merged in pairs, so that a run of any length keeps
its shape. Each point has the revision at which it last changed: a reader that has the curve at revision r
requests only newer points.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import Literal

import msgspec

from dashboard.text import LARGEST, moment, number, whole

LIMIT = 2000
"""Points: more than a wide screen has pixels for a chart."""

WIRE = 300
"""Points of a curve in a full view: as many as a chart can show; /api/series has all of them."""

GREATEST = 1e100
"""Values beyond it overflow in a weighted mean."""

Point = tuple[int, float, float]


class Series(msgspec.Struct):
    limit: int = LIMIT
    by: Literal["version", "time"] = "version"
    """What x is: a policy version, or unix seconds."""
    changed: int = 0
    """Revision of the newest change."""
    xs: list[int] = []
    times: list[float] = []
    values: list[float] = []
    weights: list[float] = []
    revisions: list[int] = []

    def add(self, x: int, at: float, value: float, weight: float, revision: int) -> bool:
        """Add a point. True when the curve was thinned: a reader's earlier points are then outdated."""
        self.changed = revision
        value = number(value, -GREATEST, GREATEST)
        place = len(self.xs) if not self.xs or x > self.xs[-1] else bisect_left(self.xs, x)
        if place < len(self.xs) and self.xs[place] == x:
            total = self.weights[place] + weight
            self.values[place] += (value - self.values[place]) * (weight / total)
            self.weights[place], self.revisions[place], self.times[place] = (
                total,
                revision,
                max(self.times[place], at),
            )
            return False
        for column, entry in zip(self._columns(), (x, at, value, weight, revision), strict=True):
            column.insert(place, entry)
        if len(self.xs) <= self.limit:
            return False
        self.thin()
        return True

    def points(self, since: int = 0, most: int | None = None) -> tuple[Point, ...]:
        """(x, at, value) of points that changed after revision `since`; merged to about `most` when there are
        more."""
        if self.changed <= since:
            return ()
        if since:
            fresh = [place for place, revision in enumerate(self.revisions) if revision > since]
            return tuple((self.xs[place], self.times[place], self.values[place]) for place in fresh)
        if most is not None and len(self.xs) > most:
            return self._merged(-(-len(self.xs) // most))
        return tuple(zip(self.xs, self.times, self.values, strict=True))

    def last(self) -> float | None:
        return self.values[-1] if self.values else None

    def cut(self, last: int) -> None:
        """Drop points beyond `last`."""
        place = bisect_right(self.xs, last)
        for column in self._columns():
            del column[place:]

    def thin(self) -> None:
        """Merge neighbours in pairs: at the later one's x, the weighted mean of their values."""
        even = len(self.xs) // 2 * 2
        first, second = slice(0, even, 2), slice(1, even, 2)
        totals = [a + b for a, b in zip(self.weights[first], self.weights[second], strict=True)]
        means = [
            before + (after - before) * (weight / total)
            for before, after, weight, total in zip(
                self.values[first], self.values[second], self.weights[second], totals, strict=True
            )
        ]
        self.revisions[:even] = map(max, self.revisions[first], self.revisions[second])
        self.xs[:even], self.times[:even] = self.xs[second], self.times[second]
        self.values[:even], self.weights[:even] = means, totals

    def sanitize(self, limit: int) -> bool:
        """Clip a curve from a snapshot to the bounds that a fold keeps. False when it is no valid curve."""
        self.limit = limit
        columns = self._columns()
        if len({len(column) for column in columns}) != 1 or any(
            a >= b for a, b in zip(self.xs, self.xs[1:], strict=False)
        ):
            return False
        if self.xs and not (self.xs[0] >= 0 and self.xs[-1] <= LARGEST):
            return False
        self.times = list(map(moment, self.times))
        self.values = [number(value, -GREATEST, GREATEST) for value in self.values]
        self.weights = [number(weight, 1.0) for weight in self.weights]
        self.revisions, self.changed = list(map(whole, self.revisions)), whole(self.changed)
        while len(self.xs) > limit:
            self.thin()
        return True

    def _columns(self) -> tuple[list, ...]:  # type: ignore[type-arg]
        return self.xs, self.times, self.values, self.weights, self.revisions

    def _merged(self, pack: int) -> tuple[Point, ...]:
        """Each `pack` neighbours as one point: the last one's x, the mean of their values."""
        even = len(self.xs) // pack * pack
        lasts = slice(pack - 1, even, pack)
        means = [
            sum(values) / pack
            for values in zip(*(self.values[start:even:pack] for start in range(pack)), strict=True)
        ]
        points = list(zip(self.xs[lasts], self.times[lasts], means, strict=True))
        if rest := self.values[even:]:
            points.append((self.xs[-1], self.times[-1], sum(rest) / len(rest)))
        return tuple(points)
