"""Where two lines of releases part is known as far as their announcements were heard."""

from __future__ import annotations

from nouns import release

from swarm.core.lineage import REMEMBERED, Line, Lineage
from swarm.limits import LINE_VERSIONS
from swarm.types import Digest, Release

START = Digest("0" * 64)


def weights(line: str, version: int) -> Digest:
    return Digest(f"{line}{version:063d}") if version else START


def line(name: str, since: int, until: int, parent: Digest) -> list[Release]:
    """Versions after `since`, of eight groups each."""
    made = []
    for version in range(since + 1, until + 1):
        made.append(release(version=version, weights=weights(name, version), parent=parent, groups=8))
        parent = weights(name, version)
    return made


def heard(*releases: Release) -> Lineage:
    lineage = Lineage()
    for each in releases:
        lineage.hear(each)
    return lineage


COMMON = line("c", 0, 5, START)
MINE, THEIRS = line("a", 5, 8, weights("c", 5)), line("b", 5, 9, weights("c", 5))


def test_two_lines_part_at_their_last_common_version() -> None:
    fork = heard(*COMMON, *MINE, *THEIRS).meet((8, weights("a", 8)), (9, weights("b", 9)))
    assert fork is not None and (fork.since, len(fork.lost), fork.groups) == (5, 3, 24)
    assert fork.lost[-1].point == (6, weights("a", 6))


def test_who_is_only_behind_loses_nothing() -> None:
    fork = heard(*COMMON, *THEIRS).meet((7, weights("b", 7)), (9, weights("b", 9)))
    assert fork is not None and (fork.since, fork.lost, fork.groups) == (7, (), 0)


def test_nothing_is_said_of_lines_that_are_not_known_to_meet_until_somebody_tells_theirs() -> None:
    mine, theirs = heard(*COMMON, *MINE), heard(*COMMON, *THEIRS)
    ends = (8, weights("a", 8)), (9, weights("b", 9))
    assert mine.meet(*ends) is None
    mine.learn(theirs.told(ends[1]), 9)
    fork = mine.meet(*ends)
    assert fork is not None and (fork.since, fork.groups) == (5, 24)


def test_the_same_weights_may_be_those_of_two_versions() -> None:
    same = [release(version=version, weights=START, parent=START) for version in (1, 2, 3)]
    assert [one.point[0] for one in heard(*same).line((3, START))] == [3, 2, 1, 0]


def test_what_is_remembered_and_what_is_told_is_bounded() -> None:
    lineage = heard(*line("c", 0, 2 * REMEMBERED, START))
    end = (2 * REMEMBERED, weights("c", 2 * REMEMBERED))
    assert len(lineage.line(end)) == REMEMBERED
    assert len(lineage.told(end).weights) == len(lineage.told(end).groups) == LINE_VERSIONS


def test_a_line_that_breaks_off_or_has_more_weights_than_groups_is_taken_as_far_as_it_goes() -> None:
    lineage = Lineage()
    lineage.learn(Line(weights=(weights("b", 9), weights("b", 8), weights("b", 7)), groups=(8,)), 9)
    assert [one.point[0] for one in lineage.line((9, weights("b", 9)))] == [9, 8]
    lineage.learn(Line(weights=(), groups=()), 9)
