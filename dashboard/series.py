"""One curve: a value per policy version, in bounded memory.

In come (version, value, weight) in about the order of the versions; several learners report one version, whose point is then
their weighted mean. When a curve is full, neighbours are merged in pairs, so that an arbitrarily long run keeps its shape. Each
point remembers the revision at which it last changed: whoever drew the curve at revision r asks only for what is newer.
"""

from __future__ import annotations

from bisect import bisect_left

LIMIT = 2000
# Points: more than a wide screen has pixels for a chart, and 16 bytes each for a browser.


class Series:
    def __init__(self) -> None:
        self.versions: list[int] = []
        self.values: list[float] = []
        self.changed = 0
        """Revision of the newest change."""
        self._weights: list[float] = []
        self._revisions: list[int] = []

    def add(self, version: int, value: float, weight: float, revision: int) -> bool:
        """True when the curve was thinned: earlier points are no longer what a reader has."""
        self.changed = revision
        place = bisect_left(self.versions, version)
        if place < len(self.versions) and self.versions[place] == version:
            total = self._weights[place] + weight
            self.values[place] += (value - self.values[place]) * weight / total
            self._weights[place], self._revisions[place] = total, revision
            return False
        self.versions.insert(place, version)
        self.values.insert(place, value)
        self._weights.insert(place, weight)
        self._revisions.insert(place, revision)
        if len(self.versions) <= LIMIT:
            return False
        self._thin()
        return True

    def points(self, since: int = 0) -> list[tuple[int, float]]:
        """(version, value) of what changed after revision `since`."""
        if self.changed <= since:
            return []
        rows = zip(self.versions, self.values, self._revisions, strict=True)
        return [(version, value) for version, value, revision in rows if revision > since]

    def last(self) -> float | None:
        return self.values[-1] if self.values else None

    def _thin(self) -> None:
        pairs = range(0, len(self.versions) - 1, 2)
        odd = slice(len(self.versions) // 2 * 2, None)
        totals = [self._weights[i] + self._weights[i + 1] for i in pairs]
        means = [
            (self.values[i] * self._weights[i] + self.values[i + 1] * self._weights[i + 1]) / total
            for i, total in zip(pairs, totals, strict=True)
        ]
        self.values = means + self.values[odd]
        self._weights = totals + self._weights[odd]
        self._revisions = [max(self._revisions[i], self._revisions[i + 1]) for i in pairs] + self._revisions[odd]
        self.versions = [self.versions[i + 1] for i in pairs] + self.versions[odd]
