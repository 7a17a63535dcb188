"""The lines of releases: which versions a policy was made of, and where two lines part.

    release --hear--> (version, weights) -> (weights of the version before, groups)
    mine, theirs --> Fork: the version that both were made of, and what only mine was made of

A swarm that was cut in two has two lines of releases from one version on. One of them counts once the parts
meet again (swarm.core.releases); the groups of the other line's versions trained a policy that nobody goes on
from. Lines are known as far as their announcements were heard: where they are not known to have a version in
common, nothing is said. Not handled: asking others for a line (peers.runtime.release_lines).
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Annotated, NamedTuple

from msgspec import Meta

from swarm.limits import LINE_VERSIONS
from swarm.types import Count, Digest, Release, Struct

REMEMBERED = 4096
"""Releases whose parents are remembered: hours of a quick run, about 1 MB."""

Point = tuple[int, Digest]
"""Version and weights."""


class PointQuery(Struct, frozen=True, tag="point-query"):
    """Asks for the line of one release."""

    version: Count
    weights: Digest


class Line(Struct, frozen=True, tag="line"):
    """A release and those that it was made of, the newest first, one a version; empty where it is not
    known."""

    weights: Annotated[tuple[Digest, ...], Meta(max_length=LINE_VERSIONS)]
    groups: Annotated[tuple[Count, ...], Meta(max_length=LINE_VERSIONS)]
    """Trained on for each."""


class Ancestor(NamedTuple):
    """A release of a line."""

    point: Point
    groups: int
    """Trained on for it."""


class Fork(NamedTuple):
    """Where my line and another one part."""

    since: int
    """The last version that both have."""
    lost: tuple[Ancestor, ...]
    """Releases that only mine has, the newest first."""

    @property
    def groups(self) -> int:
        """Trained on for the releases that only mine has."""
        return sum(one.groups for one in self.lost)


class Lineage:
    """The announced releases and their parents."""

    def __init__(self) -> None:
        self._made: OrderedDict[Point, tuple[Digest, int]] = OrderedDict()
        """Release -> weights of the version before, groups."""

    def hear(self, release: Release) -> None:
        """Remember a release that its publisher signed."""
        self._add((release.version, release.weights), release.parent, release.groups)

    def learn(self, line: Line, version: int) -> None:
        """Remember a line that ends at `version`; its oldest release has no parent there and is left out."""
        for k, (weights, groups) in enumerate(zip(line.weights[:-1], line.groups, strict=False)):
            if (point := (version - k, weights)) not in self._made:
                self._add(point, line.weights[k + 1], groups)

    def _add(self, point: Point, parent: Digest, groups: int) -> None:
        self._made[point] = (parent, groups)
        self._made.move_to_end(point)
        if len(self._made) > REMEMBERED:
            self._made.popitem(last=False)

    def knows(self, point: Point) -> bool:
        """Was this release announced?"""
        return point in self._made

    def line(self, point: Point, most: int = REMEMBERED) -> list[Ancestor]:
        """The releases that one is made of, itself first, as far as they are known."""
        found: list[Ancestor] = []
        while point in self._made and len(found) < most:
            parent, groups = self._made[point]
            found.append(Ancestor(point, groups))
            point = (point[0] - 1, parent)
        if found and point[0] >= 0 and len(found) < most:
            found.append(Ancestor(point, 0))  # named as a parent, though not announced here
        return found

    def told(self, point: Point) -> Line:
        """The line of a release, for another peer."""
        line = self.line(point, LINE_VERSIONS)
        return Line(weights=tuple(one.point[1] for one in line), groups=tuple(one.groups for one in line))

    def meet(self, mine: Point, theirs: Point) -> Fork | None:
        """Where two lines part; nothing is lost where mine is in theirs. None while they are not known to
        have a release in common."""
        other = {one.point for one in self.line(theirs)} | {theirs}
        ours = self.line(mine) or [Ancestor(mine, 0)]
        for k, one in enumerate(ours):
            if one.point in other:
                return Fork(one.point[0], tuple(ours[:k]))
        return None
