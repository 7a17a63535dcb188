"""The first line of dashboard and terminal: the worst sentence, what a new run waits for, or that all is
well."""

from __future__ import annotations

import pytest
from dashboard_story import LEARNERS, SAMPLERS, SEED, heard, story
from made_up_swarm import Swarm

from dashboard.diagnosis import diagnose
from dashboard.diagnosis.condition import SILENT, condition
from dashboard.fold.folds import fold
from dashboard.fold.state import SwarmState
from dashboard.views import Condition
from swarm.protocol import Role
from swarm.types import PeerId

LISTENED, WELL = 540.0, "All is well: 7 peers are here."


def said(state: SwarmState, now: float, quiet: float = 0.0) -> Condition:
    return condition(state, now, diagnose(state, now), quiet)


def beaten(*peers: PeerId, seconds: int = 300) -> SwarmState:
    """A window that heard these peers each two seconds, in a run in which nothing was trained."""
    state = SwarmState()
    for second in range(0, seconds + 1, 2):
        for peer in peers:
            fold(state, heard(peer, 0, 1000.0 + second, seq=second))
    return state


def test_the_worst_sentence_comes_first_and_the_others_are_counted() -> None:
    swarm = Swarm()
    swarm.run(40.0)
    assert said(swarm.state, swarm.now) == Condition(kind="ok", text=WELL)
    swarm.dead.update((*LEARNERS, SAMPLERS[0]))
    swarm.run(12.0)
    now = said(swarm.state, swarm.now)
    problems = diagnose(swarm.state, swarm.now)
    assert (now.kind, now.text, now.more) == ("error", problems[0].text, len(problems) - 1)
    assert now.more > 0 and "no learner is left" in now.text and not now.join


@pytest.mark.parametrize(
    ("busy", "gather", "advice"),
    [
        (0.95, 0.3, " The learners wait for groups in 50% of their time: about 3 more samplers"),
        (0.95, 0.1, " The learners wait for groups in 25% of their time: about 1 more sampler like"),
        (
            0.30,
            0.0,
            " The samplers have nothing to do in 70% of their time: the learners can use the groups of",
        ),
        (0.30, 0.3, ""),  # something else is slow
        (0.95, 0.0, ""),
        (0.70, 0.1, ""),
    ],
)
def test_a_swarm_without_problems_says_how_many_samplers_it_can_use(
    busy: float, gather: float, advice: str
) -> None:
    swarm = Swarm()
    swarm.busy, swarm.gather = busy, gather
    swarm.run(40.0)
    now = said(swarm.state, swarm.now)
    assert now.kind == "ok"
    assert now.text.startswith(f"{WELL}{advice}") and bool(advice) == (now.text != WELL)


def test_who_has_just_come_advises_nothing() -> None:
    swarm = Swarm()
    swarm.busy, swarm.gather = 0.95, 0.3
    swarm.run(3.0)
    assert "samplers" not in said(swarm.state, swarm.now).text


def test_a_lone_seed_waits_for_those_who_train_and_nothing_is_broken() -> None:
    state = beaten(SEED)
    now = said(state, 1300.0)
    assert (now.kind, now.join, now.more) == ("waiting", True, 0)
    assert now.text == "No training yet: no learner and no sampler has come."
    (problem,) = diagnose(state, 1300.0)
    assert problem.level == "info" and "swarm invite --role learner" in problem.todo


def test_whoever_has_come_is_not_waited_for() -> None:
    assert "no sampler has come" in said(beaten(SEED, LEARNERS[0]), 1300.0).text
    both = said(beaten(SEED, LEARNERS[0], SAMPLERS[0], seconds=20), 1020.0)
    assert both == Condition(kind="waiting", text="Nothing is trained yet: 3 peers are here.")


def test_a_role_that_went_from_a_run_that_had_begun_is_missed() -> None:
    state = SwarmState()
    for event in story(9, start=1000.0):
        fold(state, event)
    for second in range(6, 300, 2):
        fold(state, heard(SEED, 9, 1000.0 + second, seq=100 + second))
    kinds = {peer.role for peer in state.peers.values()}
    assert {Role.LEARNER, Role.SAMPLER} <= kinds
    now = said(state, 1298.0)
    assert (now.kind, now.join) == ("error", False)


def test_a_window_that_never_heard_anybody_does_not_say_that_all_was_well() -> None:
    now = said(SwarmState(), 1000.0, quiet=LISTENED)
    assert now == Condition(kind="waiting", text="No peer was heard yet. This window has listened for 9 min.")
    assert said(SwarmState(), 1000.0).text == "No peer was heard yet."


def test_a_window_that_hears_nothing_more_says_since_when() -> None:
    state = SwarmState()
    for event in story(9, start=1000.0):
        fold(state, event)
    fold(state, heard(SAMPLERS[1], 9, 1005.4, seq=9))
    assert said(state, 1006.0, quiet=0.6).kind == "ok"
    silent = said(state, 1006.0, quiet=SILENT)
    assert silent.kind == "warning" and silent.text.startswith("Nothing was heard for 10 s")
