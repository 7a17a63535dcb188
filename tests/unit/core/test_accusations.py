"""Accusations of other learners: what a replay makes of them, and how many are looked at."""

from __future__ import annotations

import pytest

from peers.audits.accusations import SAID
from swarm.core.audits.accusations import PER_HOUR, WRONG, Accusations, Claim, Opinion, opinion_of
from swarm.core.audits.auditing import DECIDING, Audits, Weighed
from swarm.core.suspensions import HOUR
from swarm.types import Digest, PeerId

ADA, BOB, SAMPLER = PeerId("ada"), PeerId("bob"), PeerId("sampler")
HONEST = Weighed(tokens=64, deciding=60, off=0, largest=0.01, drift=-0.06, claimed=0.0)
FORGED = HONEST._replace(off=2, largest=3.0)
OTHER_CLAIMS = HONEST._replace(claimed=0.2)
DAY = 24 * HOUR


def group(number: int, version: int = 1) -> Claim:
    return Claim(SAMPLER, Digest(f"{number:064x}"), version, Digest("f" * 64))


@pytest.mark.parametrize(
    ("found", "strict", "opinion"),
    [
        (FORGED, FORGED, Opinion.AGREED),
        (OTHER_CLAIMS, OTHER_CLAIMS, Opinion.AGREED),
        (HONEST, HONEST, Opinion.DISAGREED),
        (HONEST._replace(off=1), HONEST._replace(off=1), Opinion.UNDECIDED),
        (HONEST, FORGED, Opinion.UNDECIDED),
        (HONEST, OTHER_CLAIMS, Opinion.UNDECIDED),
        (HONEST._replace(deciding=DECIDING - 1), HONEST, Opinion.UNDECIDED),
    ],
)
def test_an_accuser_is_wrong_only_where_no_hardware_would_find_it_right(
    found: Weighed, strict: Weighed, opinion: Opinion
) -> None:
    assert opinion_of(found, strict) is opinion


def test_a_group_is_one_case_whoever_accuses_its_sampler_and_however_often() -> None:
    all_cases = Accusations()
    case = all_cases.record(ADA, group(1), 0.0)
    assert case is not None and case.opinion is None and {*case.accusers} == {ADA}
    assert all_cases.record(ADA, group(1), 1.0) is None
    assert all_cases.record(BOB, group(1), 1.0) is case and {*case.accusers} == {ADA, BOB}
    assert all_cases.judged(group(1), Opinion.DISAGREED) is case


def test_a_group_that_could_not_be_had_is_a_case_again() -> None:
    all_cases = Accusations()
    all_cases.record(ADA, group(1), 0.0)
    assert all_cases.next_accuser(group(1)) == ADA
    all_cases.unheard(group(1), ADA)
    assert all_cases.next_accuser(group(1)) is None
    assert (
        all_cases.record(ADA, group(1), 1.0) is not None
        and all_cases.judged(group(2), Opinion.AGREED) is None
    )


def test_a_group_that_was_let_go_is_a_case_again_whoever_says_so() -> None:
    all_cases = Accusations()
    for accuser in (ADA, BOB):
        all_cases.record(accuser, group(1), 0.0)
    all_cases.next_accuser(group(1))
    all_cases.let_go(group(1))
    all_cases.let_go(group(2))
    for accuser in (BOB, ADA):
        case = all_cases.record(accuser, group(1), 1.0)
        assert case is not None and case.opinion is None and not case.asking
        assert all_cases.next_accuser(group(1)) == accuser and case.asking
        all_cases.let_go(group(1))


def test_what_there_was_no_room_for_counts_once_while_it_is_said_as_often_as_accusers_say_it() -> None:
    all_cases = Accusations()
    for number in range(PER_HOUR - 1):
        for again in range(SAID):
            assert all_cases.record(ADA, group(number), number + again / SAID) is not None
            all_cases.let_go(group(number))
    assert all_cases.record(ADA, group(1000), 60.0) is not None
    assert all_cases.record(ADA, group(1001), 60.0) is None
    assert all_cases.record(ADA, group(0), 60.0) is None, "a fourth time it is another accusation"


def test_what_one_accuser_says_falsely_of_a_group_is_no_case_of_the_next_one() -> None:
    all_cases = Accusations()
    all_cases.record(ADA, group(1, version=9), 0.0)
    all_cases.judged(group(1, version=9), Opinion.UNDECIDED)
    case = all_cases.record(BOB, group(1), 1.0)
    assert case is not None and case.opinion is None and {*case.accusers} == {BOB}


def test_the_next_accuser_is_asked_where_one_shows_nothing_and_who_shows_another_group_never_again() -> None:
    all_cases = Accusations()
    for accuser in (ADA, BOB):
        all_cases.record(accuser, group(1), 0.0)
    assert all_cases.next_accuser(group(1)) == ADA
    all_cases.unshown(group(1), ADA)
    assert all_cases.next_accuser(group(1)) == BOB
    all_cases.unheard(group(1), BOB)
    assert all_cases.next_accuser(group(1)) is None
    assert all_cases.record(ADA, group(1), 1.0) is None
    case = all_cases.record(BOB, group(1), 1.0)
    assert case is not None and not case.asking and all_cases.next_accuser(group(1)) == BOB and case.asking


def test_an_accusation_that_was_right_gives_its_place_in_the_hour_back_and_no_other_one_does() -> None:
    for opinion in Opinion:
        all_cases = Accusations()
        for number in range(PER_HOUR):
            all_cases.record(ADA, group(number), number)
        all_cases.judged(group(3), opinion)
        heard = [all_cases.record(ADA, group(PER_HOUR + more), 60.0) is not None for more in range(2)]
        assert heard == [opinion is Opinion.AGREED, False]


def test_who_joins_a_case_that_waits_is_charged_for_it_too() -> None:
    all_cases = Accusations()
    for number in range(PER_HOUR):
        all_cases.record(BOB, group(number), 0.0)
        assert all_cases.record(ADA, group(number), 0.0) is not None
    assert all_cases.record(ADA, group(PER_HOUR), 0.0) is None


def test_of_one_accuser_so_many_cases_are_looked_at_in_an_hour_and_the_others_are_heard() -> None:
    all_cases = Accusations()
    looked = [all_cases.record(ADA, group(number), number) for number in range(2 * PER_HOUR)]
    assert [*map(bool, looked)] == [True] * PER_HOUR + [False] * PER_HOUR
    assert all_cases.record(BOB, group(1000), 60.0) is not None
    assert all_cases.record(ADA, group(1001), 3600.0) is not None


def test_who_is_wrong_again_and_again_is_not_heard_for_a_while() -> None:
    all_cases = Accusations()
    made = [all_cases.false(ADA, "it is honest", number) for number in range(WRONG)]
    assert made[:-1] == [None] * (WRONG - 1) and made[-1] is not None and made[-1].why == "it is honest"
    assert all_cases.record(ADA, group(1), HOUR) is None and all_cases.record(BOB, group(2), 3.0) is not None
    assert all_cases.record(ADA, group(1), WRONG + HOUR) is not None
    again = all_cases.false(ADA, "it is honest", WRONG + HOUR)
    assert again is not None and again.until == WRONG + 3 * HOUR, "twice as long"


def test_false_accusations_of_many_days_silence_nobody() -> None:
    all_cases = Accusations()
    assert not any(all_cases.false(ADA, "it is honest", number * DAY) for number in range(2 * WRONG))


# --- strikes that travel ------------------------------------------------------------------------------------


def test_whoever_agrees_suspends_for_as_long_as_who_accused() -> None:
    one, other = Audits(), Audits()
    for now, seconds in ((0.0, HOUR), (HOUR, 2 * HOUR)):
        _, suspension = one.take(SAMPLER, FORGED, now)
        seconded = other.accused(SAMPLER, FORGED, released=now, now=now)
        assert suspension is not None and seconded == suspension and suspension.until == now + seconds


def test_what_a_sampler_did_before_it_was_suspended_is_no_further_strike() -> None:
    audits = Audits()
    audits.take(SAMPLER, FORGED, 10.0)
    assert audits.accused(SAMPLER, FORGED, released=9.0, now=20.0) is None
    assert audits.accused(SAMPLER, FORGED, released=9.0, now=20.0 + HOUR) is None
    assert audits.accused(SAMPLER, FORGED, released=11.0, now=20.0) is None  # it is suspended
    assert audits.suspensions.strikes(SAMPLER) == 1 and audits.suspensions.of(SAMPLER, 20.0 + HOUR) is None


def test_false_claims_by_another_s_word_are_an_hour_and_no_strike() -> None:
    audits = Audits()
    suspension = audits.accused(SAMPLER, OTHER_CLAIMS, released=0.0, now=1.0)
    assert suspension is not None and suspension.until == 1.0 + HOUR and suspension.strikes == 0


def test_one_token_that_is_off_makes_a_newcomer_of_its_sampler() -> None:
    audits = Audits()
    for _ in range(40):
        audits.take(SAMPLER, HONEST, 0.0)
    assert audits.rate(SAMPLER) < 1
    audits.doubt(SAMPLER)
    audits.doubt(BOB)
    assert audits.rate(SAMPLER) == audits.rate(BOB) == 1
