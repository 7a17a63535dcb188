"""The lines of releases: which versions a policy is made of, and where two lines part.

    release --hear--> (version, weights) -> its parents, groups
    mine, theirs --> Fork: versions in this peer's line alone, and those in the other alone

A swarm that was cut in two has two lines of releases from one version on. One of them counts once the parts
meet again (swarm.core.agreement.releases); the groups of the other line's versions trained a policy without
successors, unless a release has its last version for a second parent: a merge
(peers.learner.agreement.merging). Lines are known as far as their announcements were received: where they are
not known to have a version in common, or this peer's may be part of the unknown rest of the other, there is
no result. Not handled: asking others for a line (peers.runtime.releases.lines).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import Annotated, NamedTuple

from msgspec import Meta

from swarm.limits import LINE_VERSIONS, remember
from swarm.types import Count, Digest, Merge, Release, Root, Struct

REMEMBERED = 4096
"""Releases whose parents are remembered: hours of a quick run, about 1 MB."""

Point = tuple[int, Digest]
"""Version and weights."""

Parents = Callable[[Point], Iterable[Point]]
"""The origin of a release: the version before, and the one that it merged; nothing where unknown."""


def ancestry(end: Point, parents: Parents, since: int = 0) -> tuple[set[Point], set[Point]]:
    """(the releases that one is made of, itself included, down to version `since`; those of them with unknown
    parents)."""
    found, gaps, left = {end}, set[Point](), [end]
    while left:
        point = left.pop()
        if point[0] <= since:
            continue
        if not (before := {*parents(point)}):
            gaps.add(point)
        left += before - found
        found |= before
    return found, gaps


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
    merges: Annotated[tuple[tuple[Count, Count, Root], ...], Meta(max_length=LINE_VERSIONS)] = ()
    """(version, version and weights that it merged)."""


class Made(NamedTuple):
    """The origin of a release."""

    parents: tuple[Point, ...]
    groups: int
    """Trained on in its step; a merge is none."""


class Fork(NamedTuple):
    """Where my line and another one part."""

    since: int
    """The version before the first one that only this peer's line has."""
    lost: tuple[Point, ...]
    """Releases that only mine has, the newest first."""
    groups: int
    """Trained on for these."""
    others: int
    """Groups trained on for the releases that only the other line has."""

    @property
    def share(self) -> float:
        """Of my policy in a mean of both, by the groups that only one of them was trained on."""
        return self.groups / max(1, self.groups + self.others)


class Lineage:
    """The announced releases and their parents."""

    def __init__(self) -> None:
        self._made: OrderedDict[Point, Made] = OrderedDict()

    def receive(self, release: Release) -> None:
        """Remember a release that its publisher signed."""
        point, groups = (release.version, release.weights), 0 if release.merged else release.groups
        made = Made(parents(release.version, release.parent, release.merged), groups)
        remember(self._made, point, made, REMEMBERED)

    def learn(self, line: Line, version: int) -> None:
        """Remember a line that ends at `version`; its oldest release has no parent there and is left out."""
        merges = {at: Merge(version=merged, weights=weights) for at, merged, weights in line.merges}
        for k, (weights, groups) in enumerate(zip(line.weights[:-1], line.groups, strict=False)):
            if (point := (version - k, weights)) not in self._made:
                before = parents(version - k, line.weights[k + 1], merges.get(version - k))
                remember(self._made, point, Made(before, groups), REMEMBERED)

    def knows(self, point: Point) -> bool:
        """Was this release announced?"""
        return point in self._made

    def parents(self, point: Point) -> tuple[Point, ...]:
        """The origin of a release; nothing where unknown."""
        return self._made[point].parents if point in self._made else ()

    def unknown(self, end: Point) -> set[Point]:
        """The releases that one is made of and whose parents are unknown."""
        return ancestry(end, self.parents)[1]

    def unknown_merged(self, end: Point, since: int) -> set[Point]:
        """Those of them after version `since` that are of merged lines."""
        first = ancestry(end, lambda point: self.parents(point)[:1], since)
        return ancestry(end, self.parents, since)[1] - first[1]

    def line_of(self, end: Point) -> Line:
        """The line of a release, for another peer: each version after the one before."""
        weights, groups, merges = list[Digest](), list[int](), list[tuple[int, int, Digest]]()
        point: Point | None = end if self.knows(end) else None
        while point is not None and len(weights) < LINE_VERSIONS:
            made = self._made.get(point, Made((), 0))  # a release known as a parent alone ends the line
            weights.append(point[1])
            groups.append(made.groups)
            merges += [(point[0], *one) for one in made.parents[1:]]
            point = made.parents[0] if made.parents else None
        return Line(weights=tuple(weights), groups=tuple(groups), merges=tuple(merges))

    def meet(self, mine: Point, theirs: Point) -> Fork | None:
        """Where two lines part; nothing is lost where mine is in theirs. None while they are not known to
        have a release in common, or theirs is not known as far as where mine begins."""
        (ours, _), (other, gaps) = (ancestry(end, self.parents) for end in (mine, theirs))
        lost = sorted(ours - other, reverse=True)
        if ours.isdisjoint(other) or any(lost and gap[0] > lost[-1][0] for gap in gaps - ours):
            return None
        since = lost[-1][0] - 1 if lost else mine[0]
        return Fork(since, tuple(lost), self._groups(lost), self._groups(other - ours))

    def _groups(self, points: Iterable[Point]) -> int:
        return sum(self._made[point].groups for point in points if point in self._made)


def parents(version: int, before: Digest, merged: Merge | None) -> tuple[Point, ...]:
    """The origin of a version; nothing for version 0."""
    merges = () if merged is None else ((merged.version, merged.weights),)
    return ((version - 1, before), *merges) if version > 0 else ()
