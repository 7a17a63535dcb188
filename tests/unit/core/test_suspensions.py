"""Suspensions: how long they last, what is remembered, and what a refusal says."""

from __future__ import annotations

import pytest

from swarm.core.suspensions import HOUR, LONGEST, REMEMBERED, Suspension, Suspensions, reason_of
from swarm.types import PeerId

ADA, BOB = PeerId("ada"), PeerId("bob")


def test_each_strike_lasts_twice_as_long_up_to_a_bound() -> None:
    suspensions, now, lasted = Suspensions(HOUR), 1000.0, []
    for strikes in range(1, 13):
        made = suspensions.suspend(ADA, "forged", now)
        assert made.strikes == strikes and suspensions.of(ADA, now) == made
        lasted.append(made.until - now)
        now = made.until
        assert suspensions.of(ADA, now) is None and suspensions.last(ADA) == made
    assert lasted == [min(HOUR * 2**k, LONGEST) for k in range(12)] and lasted[-1] == LONGEST
    for _ in range(2000):
        suspensions.suspend(ADA, "forged", now)
    assert suspensions.suspend(ADA, "forged", now).until == now + LONGEST


def test_what_is_no_strike_lasts_as_long_as_the_last_time_and_makes_no_later_one_longer() -> None:
    suspensions = Suspensions(HOUR)
    for _ in range(3):
        assert suspensions.suspend(ADA, "drift", 0.0, is_strike=False)[:2] == (HOUR, 0)
    assert suspensions.suspend(ADA, "forged", 0.0)[:2] == (HOUR, 1)
    assert suspensions.suspend(ADA, "forged", 0.0)[:2] == (2 * HOUR, 2)
    assert suspensions.suspend(ADA, "drift", 0.0, is_strike=False)[:2] == (2 * HOUR, 2)


def test_who_is_let_back_was_never_suspended() -> None:
    suspensions = Suspensions(HOUR)
    suspensions.suspend(ADA, "forged", 0.0)
    suspensions.lift(ADA)
    assert suspensions.of(ADA, 1.0) is None and suspensions.strikes(ADA) == 0 and suspensions.all() == {}
    suspensions.lift(BOB)


def test_an_earlier_life_s_strikes_count_on() -> None:
    before, after = Suspensions(HOUR), Suspensions(HOUR)
    before.suspend(ADA, "forged", 0.0)
    after.restore(before.all())
    assert after.of(ADA, HOUR - 1.0) is not None and after.of(ADA, HOUR) is None
    assert after.suspend(ADA, "forged", 4000.0)[:2] == (4000.0 + 2 * HOUR, 2)


def test_the_one_that_ends_first_is_forgotten_first_and_the_newest_is_not() -> None:
    suspensions = Suspensions(10.0, remembered=3)
    suspensions.restore({PeerId(f"long-{number}"): Suspension(1e6 + number) for number in range(3)})
    suspensions.suspend(ADA, "forged", 0.0)
    assert suspensions.all().keys() == {"long-1", "long-2", ADA}
    suspensions.suspend(BOB, "forged", 1.0)
    assert suspensions.all().keys() == {"long-1", "long-2", BOB}
    assert suspensions.in_force(2.0) == {"long-1", "long-2", BOB} and suspensions.in_force(2e6) == frozenset()


def test_as_many_are_remembered_as_there_is_room_for() -> None:
    suspensions = Suspensions(10.0)
    for number in range(REMEMBERED + 9):
        suspensions.suspend(PeerId(str(number)), "forged", float(number))
    assert len(suspensions.all()) == REMEMBERED and suspensions.strikes(PeerId("8")) == 0


@pytest.mark.parametrize(
    ("left", "told"), [(30 * 86400.0, "30 days"), (2 * HOUR, "2 h"), (HOUR, "60 min"), (60.0, "60 s")]
)
def test_a_refusal_says_why_and_for_how_long(left: float, told: str) -> None:
    objection = Suspension(100.0 + left, 1, "forged: two tokens").objection(100.0)
    assert objection == f"suspended for another {told}: forged: two tokens"
    assert reason_of(objection) == "forged: two tokens" and reason_of("no room") == "no room"
