"""Where two lines of releases part is known as far as their announcements were heard."""

from __future__ import annotations

import pytest
from nouns import release

from swarm.core.agreement.lineage import REMEMBERED, Line, Lineage
from swarm.limits import LINE_VERSIONS
from swarm.types import Digest, Merge, Release

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
    assert fork is not None and (fork.since, len(fork.lost), fork.groups, fork.others) == (5, 3, 24, 32)
    assert fork.lost[-1] == (6, weights("a", 6)) and fork.share == 24 / 56


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


MERGED = release(
    version=10,
    weights=weights("m", 10),
    parent=weights("b", 9),
    groups=24,
    merged=Merge(version=8, weights=weights("a", 8)),
)
LATER = line("m", 10, 12, weights("m", 10))
END = (12, weights("m", 12))


def test_a_line_that_was_merged_is_part_of_what_comes_of_it() -> None:
    lineage = heard(*COMMON, *MINE, *THEIRS, MERGED, *LATER)
    for part in (MINE, THEIRS):
        fork = lineage.meet((8, part[2].weights), END)
        assert fork is not None and not fork.lost


def test_groups_of_a_merged_line_count_once_and_versions_after_the_merge_alone_are_missing() -> None:
    more = line("a", 8, 10, weights("a", 8))
    fork = heard(*COMMON, *MINE, *more, *THEIRS, MERGED, *LATER).meet((10, weights("a", 10)), END)
    assert fork is not None and (fork.since, len(fork.lost), fork.groups) == (8, 2, 16)
    assert fork.others == 8 * (len(THEIRS) + len(LATER))


def test_nothing_is_said_while_my_line_may_be_part_of_one_that_was_merged() -> None:
    mine, theirs = heard(*COMMON, *MINE[:2]), heard(*COMMON, *MINE, *THEIRS, MERGED, *LATER)
    point = (7, weights("a", 7))
    mine.learn(theirs.line_of(END), END[0])
    assert mine.meet(point, END) is None
    assert mine.unknown_merged(END, 5) == {(8, weights("a", 8))} and not mine.unknown_merged(END, 8)
    mine.learn(theirs.line_of((8, weights("a", 8))), 8)
    fork = mine.meet(point, END)
    assert fork is not None and not fork.lost


def test_a_line_is_told_as_the_versions_before_it_with_what_each_merged() -> None:
    told = heard(*THEIRS, MERGED, *LATER).line_of(END)
    made = [
        END[1],
        weights("m", 11),
        MERGED.weights,
        *(weights("b", k) for k in (9, 8, 7, 6)),
        weights("c", 5),
    ]
    assert told.weights == tuple(made) and told.groups == (8, 8, 0, 8, 8, 8, 8, 0)
    assert told.merges == ((10, 8, weights("a", 8)),)


def test_what_is_missing_of_the_line_itself_is_none_of_its_merged_lines() -> None:
    lineage = heard(*THEIRS, MERGED, *LATER)
    assert lineage.unknown(END) == {(5, weights("c", 5)), (8, weights("a", 8))}
    assert lineage.unknown_merged(END, 0) == {(8, weights("a", 8))}


@pytest.mark.parametrize(("known", "is_said"), [(8, False), (7, False), (6, True)])
def test_a_line_is_lost_where_theirs_is_known_as_far_as_it_begins(known: int, is_said: bool) -> None:
    """Theirs merged another one of the same beginning, of which only the newest versions are known."""
    merged = release(
        version=10,
        weights=weights("m", 10),
        parent=weights("b", 9),
        merged=Merge(version=8, weights=weights("d", 8)),
    )
    other = [one for one in line("d", 5, 8, weights("c", 5)) if one.version > known]
    fork = heard(*COMMON, *MINE, *THEIRS, *other, merged).meet((8, weights("a", 8)), (10, merged.weights))
    assert (fork is not None) == is_said
    if fork is not None:
        assert (fork.since, fork.groups, fork.others) == (5, 24, 8 * len(THEIRS) + 8 * len(other))


def test_who_is_only_behind_loses_nothing_though_a_merged_line_is_not_known() -> None:
    fork = heard(*COMMON, *THEIRS, MERGED).meet((7, weights("b", 7)), (10, MERGED.weights))
    assert fork is not None and (fork.since, fork.lost, fork.others) == (7, (), 16)


def test_a_line_that_only_mine_merged_is_lost_though_what_came_before_our_common_release_is_unknown() -> None:
    before = line("c", 6, 8, weights("c", 6))
    mine = release(
        version=9,
        weights=weights("m", 9),
        parent=weights("c", 8),
        merged=Merge(version=4, weights=weights("d", 4)),
    )
    theirs = line("b", 8, 9, weights("c", 8))
    fork = heard(*before, *line("d", 2, 4, weights("d", 2)), mine, *theirs).meet(
        (9, mine.weights), (9, weights("b", 9))
    )
    assert fork is not None and fork.groups == 16 and fork.others == 8


def test_lines_that_merge_each_other_end() -> None:
    first = release(version=2, weights=START, parent=START, merged=Merge(version=9, weights=START))
    second = release(version=9, weights=START, parent=weights("b", 8), merged=Merge(version=2, weights=START))
    fork = heard(first, second).meet((2, START), (9, START))
    assert fork is not None and not fork.lost
