"""The lines of releases: which versions a policy is made of, and where two lines part.

    release --receive--> (version, weights) -> its parent, groups
    mine, theirs --> Fork: the versions in this peer's line alone

A line is a chain: each release has one parent, of the version before. A swarm that was cut in two has two
lines from one version on. One of them counts once the parts meet again (swarm.core.agreement.releases); the
groups of the other line's versions trained a policy without successors. Lines are known as far as their
announcements were received: where they are not known to have a version in common, there is no result. Not
handled: asking others for a line (peers.runtime.releases.lines).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from itertools import takewhile
from typing import Annotated, NamedTuple

from msgspec import Meta

from swarm.limits import LINE_VERSIONS, remember
from swarm.types import Count, Digest, Release, Struct

REMEMBERED = 4096
"""Releases whose parents are remembered: hours of a quick run, about 1 MB."""

Point = tuple[int, Digest]
"""Version and weights."""

Parent = Callable[[Point], Point | None]
"""The release that one was made from; None where that is unknown, and for version 0."""


def ancestry(end: Point, parent: Parent, since: int = 0) -> tuple[dict[int, Digest], Point | None]:
    """(version -> weights of a release and of those that it was made of, the newest first, down to version
    `since`; the last of them where its parent is unknown)."""
    line, point = dict([end]), end
    while point[0] > since:
        if (before := parent(point)) is None:
            return line, point
        line[before[0]], point = before[1], before
    return line, None


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


class Made(NamedTuple):
    """The origin of a release."""

    parent: Point | None
    groups: int
    """Trained on in its step."""


class Fork(NamedTuple):
    """Where my line and another one part."""

    since: int
    """The version before the first one that only this peer's line has."""
    lost: tuple[Point, ...]
    """Releases that only mine has, the newest first."""
    groups: int
    """Trained on for these."""


class Lineage:
    """The announced releases and their parents."""

    def __init__(self) -> None:
        self._made: OrderedDict[Point, Made] = OrderedDict()

    def receive(self, release: Release) -> None:
        """Remember a release that its publisher signed."""
        made = Made(parent_of(release.version, release.parent), release.groups)
        remember(self._made, (release.version, release.weights), made, REMEMBERED)

    def learn(self, line: Line, version: int) -> None:
        """Remember a line that ends at `version`; its oldest release has no parent there and is left out."""
        for k, (weights, groups) in enumerate(zip(line.weights[:-1], line.groups, strict=False)):
            if (point := (version - k, weights)) not in self._made:
                made = Made(parent_of(version - k, line.weights[k + 1]), groups)
                remember(self._made, point, made, REMEMBERED)

    def knows(self, point: Point) -> bool:
        """Was this release announced?"""
        return point in self._made

    def parent(self, point: Point) -> Point | None:
        """The release that one was made from; None where unknown."""
        return self._made[point].parent if point in self._made else None

    def unknown(self, end: Point) -> Point | None:
        """The release of a line whose parent is unknown; None where the line is known to version 0."""
        return ancestry(end, self.parent)[1]

    def line_of(self, end: Point) -> Line:
        """The line of a release, for another peer: each version after the one before."""
        known = ancestry(end, self.parent, end[0] - LINE_VERSIONS + 1)[0] if self.knows(end) else {}
        return Line(weights=tuple(known.values()), groups=tuple(map(self._groups, known.items())))

    def meet(self, mine: Point, theirs: Point) -> Fork | None:
        """Where two lines part; nothing is lost where mine is in theirs. None while they are not known to
        have a release in common."""
        ours, others = (ancestry(end, self.parent)[0] for end in (mine, theirs))
        lost = tuple(takewhile(lambda point: point not in others.items(), ours.items()))
        if len(lost) == len(ours):
            return None
        return Fork(mine[0] - len(lost), lost, sum(map(self._groups, lost)))

    def _groups(self, point: Point) -> int:
        """0 for a release that is known as a parent alone."""
        return self._made[point].groups if point in self._made else 0


def parent_of(version: int, weights: Digest) -> Point | None:
    """The release that a version was made from, by its weights; None for version 0."""
    return (version - 1, weights) if version > 0 else None
