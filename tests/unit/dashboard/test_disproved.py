"""The dashboard says which learner's gradients others found to be false."""

from __future__ import annotations

from dashboard_story import LEARNERS, story

from dashboard.diagnosis import diagnose
from dashboard.fold.folds import fold
from dashboard.fold.sentences import sentence_of
from dashboard.fold.state import SwarmState
from dashboard.views import Problem
from swarm import events as happened
from swarm.membership.identity import human_name

WHY = "it sent a gradient that its groups do not give: cosine -1.000, 4 times the norm"


def left_out(by: int, until: float = 3609.0) -> happened.LeftOut:
    return happened.LeftOut(at=9.0, peer=LEARNERS[by], learner=LEARNERS[0], until=until, why=WHY)


def problems(*more: happened.Event) -> list[Problem]:
    state = SwarmState()
    for each in (*story(9, start=0.0), *more):
        fold(state, each)
    return [each for each in diagnose(state, 10.0) if each.key.startswith("disproved")]


def test_a_learner_that_the_others_leave_out_is_named_with_what_they_found() -> None:
    (problem,) = problems(left_out(1))
    assert problem.peers == (str(LEARNERS[0]),) and "as 1 of 1 other learner found" in problem.text
    assert f"learner {human_name(LEARNERS[0])}" in problem.text
    assert "cosine -1.000, 4 times the norm." in problem.cause
    assert "left out of all means" in problem.todo and "`swarm revoke`" in problem.todo


def test_it_is_named_no_longer_than_it_is_left_out_and_by_no_other_than_learners() -> None:
    assert not problems(left_out(1, until=9.5)) and not problems(left_out(0))


def test_it_is_told_as_it_happens() -> None:
    news = sentence_of(left_out(1), human_name)
    assert news is not None and news.text == (
        f"{human_name(LEARNERS[1])} leaves {human_name(LEARNERS[0])} out of its means for 60 min: {WHY}."
    )
