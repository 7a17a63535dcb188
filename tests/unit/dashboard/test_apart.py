"""The dashboard says what a split cost after its parts have met."""

from __future__ import annotations

from dashboard_story import LEARNERS, SAMPLERS, story

from dashboard.diagnosis import diagnose
from dashboard.diagnosis.situation import HISTORY
from dashboard.fold.folds import fold
from dashboard.fold.sentences import sentence_of
from dashboard.fold.state import SwarmState
from dashboard.views import Problem
from swarm import events as happened
from swarm.types import Digest, PeerId


def forked(peer: PeerId, at: float, versions: int = 162) -> happened.Forked:
    return happened.Forked(
        at=at,
        peer=peer,
        version=363,
        since=200,
        versions=versions,
        groups=8 * versions,
        first=Digest("f" * 64),
    )


def problems(*events: happened.Event, later: float = 0.0) -> list[Problem]:
    """Of a swarm that is well, and what these events make of it."""
    state, now = SwarmState(), 0.0
    for event in (*story(9, start=0.0), *events):
        fold(state, event)
        now = max(now, event.at)
    return [each for each in diagnose(state, now + later) if each.key.startswith("forked")]


def test_versions_and_groups_that_do_not_count_any_more_are_told_with_names_until_that_is_history() -> None:
    (problem,) = problems(forked(LEARNERS[0], 9.0))
    assert "after version 200: 162 versions" in problem.text and "1296 groups do not count" in problem.text
    assert "with version 363" in problem.cause and problem.peers == (LEARNERS[0],)
    assert not problems(forked(LEARNERS[0], 9.0), later=HISTORY + 1.0)


def test_two_learners_of_one_part_are_one_problem_and_two_parts_are_two() -> None:
    both = (forked(LEARNERS[0], 9.0, 161), forked(LEARNERS[1], 9.0))
    (problem,) = problems(*both)
    assert "162 versions" in problem.text and set(problem.peers) == set(LEARNERS[:2])
    third = happened.Forked(
        at=9.0, peer=SAMPLERS[0], version=363, since=200, versions=1, groups=1, first=Digest("e" * 64)
    )
    assert len(problems(*both, third)) == 2


def test_the_event_is_a_sentence() -> None:
    news = sentence_of(forked(LEARNERS[0], 9.0), lambda _: "brisk-umber-otter")
    assert news is not None and news.text == (
        "brisk-umber-otter trained apart after version 200 and took version 363: 162 versions with 1296"
        " groups do not count any more."
    )


def test_learners_that_hear_each_other_and_never_meet_are_one_problem_until_they_average() -> None:
    state, (one, other) = SwarmState(), LEARNERS[:2]
    pairs = ((one, other), (other, one))
    vain = [happened.Unreached(at=9.0, peer=me, version=3, subject=peer, rounds=3) for me, peer in pairs]
    for event in (*story(9, start=0.0), *vain):
        fold(state, event)
    (problem,) = [each for each in diagnose(state, 9.0) if each.key.startswith("unreached")]
    assert set(problem.peers) == {one, other} and "never complete a round together" in problem.text
    assert "Neither can dial the other" in problem.cause and "port" in problem.todo
    for me in (one, other):
        fold(state, happened.Averaged(at=9.5, peer=me, version=4, members=(one, other), seconds=0.1))
    assert not [each for each in diagnose(state, 9.5) if each.key.startswith("unreached")]
