"""Where two lines of releases part is known as far as their announcements were heard."""

from __future__ import annotations

from nouns import release

from swarm.core.agreement.lineage import REMEMBERED, Line, Lineage
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
        lineage.receive(each)
    return lineage


COMMON = line("c", 0, 5, START)
MINE, THEIRS = line("a", 5, 8, weights("c", 5)), line("b", 5, 9, weights("c", 5))


def test_two_lines_part_at_their_last_common_version() -> None:
    fork = heard(*COMMON, *MINE, *THEIRS).meet((8, weights("a", 8)), (9, weights("b", 9)))
    assert fork is not None and (fork.since, fork.groups) == (5, 24)
    assert fork.lost == tuple((version, weights("a", version)) for version in (8, 7, 6))


def test_who_is_only_behind_loses_nothing() -> None:
    fork = heard(*COMMON, *THEIRS).meet((7, weights("b", 7)), (9, weights("b", 9)))
    assert fork is not None and (fork.since, fork.lost, fork.groups) == (7, (), 0)


def test_nothing_is_said_of_lines_that_are_not_known_to_meet_until_somebody_tells_theirs() -> None:
    mine, theirs = heard(*COMMON, *MINE), heard(*COMMON, *THEIRS)
    ends = (8, weights("a", 8)), (9, weights("b", 9))
    assert mine.meet(*ends) is None
    mine.learn(theirs.line_of(ends[1]), 9)
    fork = mine.meet(*ends)
    assert fork is not None and (fork.since, fork.groups) == (5, 24)


def test_nothing_is_said_of_lines_of_two_beginnings_though_each_is_known_as_far_as_it_goes() -> None:
    ours, theirs = line("a", 5, 8, weights("x", 5)), line("b", 3, 9, weights("y", 3))
    assert heard(*ours, *theirs).meet((8, weights("a", 8)), (9, weights("b", 9))) is None


def test_a_line_is_told_as_the_versions_before_it_down_to_one_that_is_known_as_a_parent_alone() -> None:
    theirs = heard(*THEIRS)
    told = theirs.line_of((9, weights("b", 9)))
    assert told.weights == (*(weights("b", version) for version in (9, 8, 7, 6)), weights("c", 5))
    assert told.groups == (8, 8, 8, 8, 0)
    assert theirs.unknown((9, weights("b", 9))) == (5, weights("c", 5))
    assert heard(*COMMON).unknown((5, weights("c", 5))) is None


def test_the_same_weights_may_be_those_of_two_versions() -> None:
    same = [release(version=version, weights=START, parent=START) for version in (1, 2, 3)]
    assert heard(*same).line_of((3, START)).weights == (START,) * 4


def test_what_is_told_of_an_unknown_release_is_empty_and_nothing_is_told_below_version_0() -> None:
    empty = Line(weights=(), groups=())
    assert Lineage().line_of((3, START)) == empty
    first = release(version=0, weights=START, parent=Digest(""), groups=0)
    assert heard(first).line_of((0, START)) == Line(weights=(START,), groups=(0,))
    lineage = Lineage()
    lineage.learn(empty, 3)
    assert not lineage.knows((3, START))


def test_what_is_remembered_and_what_is_told_is_bounded() -> None:
    lineage = heard(*line("c", 0, 2 * REMEMBERED, START))
    end = (2 * REMEMBERED, weights("c", 2 * REMEMBERED))
    assert sum(lineage.knows((version, weights("c", version))) for version in range(end[0] + 1)) == REMEMBERED
    assert len(lineage.line_of(end).weights) == len(lineage.line_of(end).groups) == LINE_VERSIONS


def test_a_line_that_breaks_off_or_has_more_weights_than_groups_is_taken_as_far_as_it_goes() -> None:
    lineage = Lineage()
    lineage.learn(Line(weights=(weights("b", 9), weights("b", 8), weights("b", 7)), groups=(8,)), 9)
    assert lineage.line_of((9, weights("b", 9))).weights == (weights("b", 9), weights("b", 8))
    lineage.learn(Line(weights=(weights("b", 9), weights("b", 8), weights("b", 7)), groups=(8, 8, 8)), 9)
    assert lineage.line_of((9, weights("b", 9))).weights == tuple(weights("b", k) for k in (9, 8, 7))
