"""Who steps alone, from heartbeats alone."""

from __future__ import annotations

import math
from typing import Any

import pytest

from swarm.core.agreement.solo_turns import SoloTurns
from swarm.protocol import Phase, Role
from swarm.types import Beat, Digest, Lag, PeerId

ME = (5, PeerId("me"))
OLDER, YOUNGER, OLDEST = PeerId("older"), PeerId("younger"), PeerId("oldest")
AGES = {OLDEST: 1, OLDER: 2, YOUNGER: 9}


def beats(**states: str) -> dict[PeerId, Beat]:
    idle: dict[str, Any] = {"done": 0, "refused": 0, "rate": 0.0, "tokens": 0.0, "busy": 0.0, "lag": Lag()}
    return {
        PeerId(name): Beat(
            name=name,
            role=Role.LEARNER,
            incarnation=AGES[PeerId(name)],
            seq=1,
            version=3,
            weights=Digest("0" * 64),
            state=state,
            phase=Phase(state),
            credit=0,
            takers=1,
            inbox=0,
            addresses=(),
            hardware="",
            at=0.0,
            **idle,
        )
        for name, state in states.items()
    }


def turns() -> SoloTurns:
    return SoloTurns(ME, timeout=5.0)


def test_the_oldest_learner_with_a_gradient_is_first_and_the_others_wait_for_as_many_as_are_older() -> None:
    assert turns().ask(beats(younger="matching"), 100.0)
    for others, waits in (
        (beats(older="matching"), 5.0),
        (beats(older="matching", oldest="matching", younger="matching"), 10.0),
    ):
        mine = turns()
        mine.begin(others)
        assert not mine.ask(others, 100.0)
        assert mine.wait(100.0) == waits and mine.waited
        assert not mine.ready(True, 100.0 + waits - 0.1) and mine.ready(True, 100.0 + waits)


def test_a_turn_that_came_at_once_was_not_waited_for_and_is_asked_for_anew_when_its_step_broke() -> None:
    mine = turns()
    assert mine.ask(beats(younger="matching"), 100.0) and not mine.waited
    assert not mine.ask(beats(older="matching"), 101.0)


@pytest.mark.parametrize("state", ["gathering", "learning", "catching up"])
def test_who_has_no_gradient_is_not_waited_for_however_old(state: str) -> None:
    mine = turns()
    mine.begin(beats(older="gathering"))
    assert mine.ask(beats(older=state), 100.0)


@pytest.mark.parametrize(("state", "listens"), [("gathering", False), ("learning", True)])
def test_a_claim_is_listened_to_where_another_gradient_may_be_done_by_now(state: str, listens: bool) -> None:
    assert turns().contested(beats(younger=state)) is listens


def test_who_was_seen_under_way_has_kept_its_gradient() -> None:
    mine = turns()
    mine.begin(beats(older="learning"))
    assert not mine.ask(beats(older="gathering"), 100.0)


@pytest.mark.parametrize("state", ["stepping", "releasing"])
def test_whoever_steps_already_comes_first_however_young(state: str) -> None:
    mine = turns()
    assert not mine.ask(beats(younger=state), 100.0)
    assert mine.wait(100.0) == 5.0


def test_after_its_turn_has_come_a_learner_waits_only_for_those_that_step() -> None:
    mine = turns()
    assert not mine.ask(beats(older="matching", younger="matching"), 100.0)
    assert not mine.ask(beats(older="matching", younger="stepping"), 105.0)
    assert mine.ask(beats(older="matching", younger="matching"), 110.0)


def test_whose_release_is_on_its_way_is_waited_for_like_one_that_steps() -> None:
    mine = turns()
    assert not mine.ask({}, 100.0, coming=[YOUNGER])
    assert mine.wait(100.0) == 5.0
    assert not mine.ask(beats(oldest="stepping"), 105.0, coming=[OLDER])
    assert mine.wait(105.0) == 10.0


def test_a_release_that_does_not_come_is_waited_for_once_with_each_gradient() -> None:
    mine = turns()
    for start in (100.0, 200.0):
        assert not mine.ask({}, start, coming=[YOUNGER])
        assert mine.ask(beats(older="matching"), start + 5.0, coming=[YOUNGER])
        assert mine.claim(beats(older="matching"), start + 6.0, coming=[YOUNGER])
        mine.forget()


def test_a_claim_does_not_count_when_a_release_came_on_its_way_meanwhile() -> None:
    mine = turns()
    assert mine.ask(beats(younger="matching"), 100.0)
    assert not mine.claim({}, 101.0, coming=[YOUNGER])
    assert mine.wait(101.0) == 5.0


def test_of_two_that_claim_at_once_the_older_asks_again_first() -> None:
    for others, waits in ((beats(younger="stepping"), 5.0), (beats(older="stepping"), 10.0)):
        mine = turns()
        assert mine.contested(others)
        assert not mine.claim(others, 100.0)
        assert mine.wait(100.0) == waits
    assert turns().claim(beats(older="matching"), 100.0)


def test_one_that_is_left_alone_need_not_wait_its_turn_out() -> None:
    mine = turns()
    assert not mine.ask(beats(older="matching"), 100.0)
    assert mine.ready(False, 100.1)


def test_a_learner_that_need_not_wait_for_a_turn_uses_its_gradient_at_once_with_others_present() -> None:
    mine = turns()
    assert mine.ready(True, 100.0)
    assert not mine.ask(beats(older="matching"), 100.0)
    assert not mine.ready(True, 100.0) and mine.ready(True, 100.0 + mine.wait(100.0))


def test_a_gradient_that_is_gone_is_forgotten() -> None:
    mine = turns()
    mine.begin(beats(older="learning"))
    mine.ask(beats(older="gathering"), 100.0)
    mine.forget()
    assert mine.wait(100.0) == math.inf and not mine.waited and mine.ask(beats(older="gathering"), 100.0)


@pytest.mark.parametrize(
    ("others", "second"),
    [
        ({"older": "matching", "oldest": "matching", "younger": "matching"}, True),
        ({"older": "matching", "oldest": "learning", "younger": "matching"}, False),
    ],
)
def test_two_learners_outside_of_a_round_may_be_in_another_one(others: dict[str, str], second: bool) -> None:
    assert turns().second_round(beats(**others), {ME[1], YOUNGER}) is second


def test_of_two_rounds_the_one_with_the_oldest_learner_goes_first() -> None:
    both = beats(older="stepping", oldest="stepping", younger="stepping")
    assert turns().first(both, {ME[1], OLDEST})
    assert not turns().first(both, {ME[1], YOUNGER})
    assert turns().first(beats(older="matching", oldest="matching", younger="stepping"), {ME[1], YOUNGER})
    assert not turns().first(beats(oldest="stepping", younger="releasing"), {ME[1], OLDEST}), "it has stepped"


def test_one_more_round_is_tried_once_for_a_gradient() -> None:
    mine = turns()
    assert mine.tries_again() and not mine.tries_again()
    mine.forget()
    assert mine.tries_again()


def test_who_closed_a_batch_works() -> None:
    others = beats(older="gathering", younger="learning", oldest="matching")
    assert turns().working(others) == {YOUNGER, OLDEST}
