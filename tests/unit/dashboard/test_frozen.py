"""The dashboard says that two learners oppose each other, and what so few learners are not protected from."""

from __future__ import annotations

from io import StringIO

import pytest
from dashboard_story import LEARNERS, story
from made_up_swarm import Swarm
from rich.console import Console

from dashboard.diagnosis import diagnose
from dashboard.diagnosis.condition import UNPROTECTED, condition
from dashboard.fold.folds import fold
from dashboard.fold.sentences import sentence_of
from dashboard.fold.state import SwarmState
from dashboard.serve.state_view import head_of
from dashboard.serve.terminal import render
from dashboard.views import Problem
from swarm import events as happened
from swarm.core.gradient_checks.pair_conflict import OPPOSED, UNEQUAL


def broke(until: float, why: str = OPPOSED) -> happened.RoundBroke:
    reason = f"{why}; nothing was averaged"
    return happened.RoundBroke(at=9.0, peer=LEARNERS[0], version=9, reason=reason, until=until)


def found(now: float, *more: happened.Event) -> list[Problem]:
    state = SwarmState()
    for each in (*story(9, start=0.0), *more):
        fold(state, each)
    return [each for each in diagnose(state, now) if each.key == "frozen"]


def test_a_learner_that_is_frozen_is_an_alarm_until_it_may_step_again() -> None:
    (problem,) = found(10.0, broke(69.0))
    assert problem.level == "error" and problem.peers == (str(LEARNERS[0]),)
    assert "nothing for another 59 s" in problem.text and "swarm revoke" in problem.todo
    assert "point away from each other" in problem.text
    assert "differ grossly in length" in found(10.0, broke(69.0, UNEQUAL))[0].text
    assert not found(10.0, broke(9.5)) and not found(10.0, broke(0.0))


def test_its_sentence_says_for_how_long() -> None:
    news = sentence_of(broke(69.0), lambda _: "brisk-umber-otter")
    assert (
        news is not None
        and news.text == f"brisk-umber-otter does not step for 60 s: {OPPOSED}; nothing was averaged."
    )


@pytest.mark.parametrize("learners", [1, 2])
def test_a_note_and_no_verdict_says_what_so_few_learners_are_not_protected_from(learners: int) -> None:
    swarm = Swarm()
    swarm.dead.update(LEARNERS[learners:])
    swarm.run(40.0)
    assert head_of(swarm.state, swarm.now).note == UNPROTECTED[learners]
    shown = Console(width=200, file=(text := StringIO()))
    shown.print(render(swarm.state, swarm.now, 200))
    assert UNPROTECTED[learners] in text.getvalue()
    said = condition(swarm.state, swarm.now, ()).text
    assert not [text for text in UNPROTECTED.values() if text in said]
