"""What a learner that was in the rounds of most knows of other releases, and when it knows nothing."""

from __future__ import annotations

from swarm.core.agreement.round_record import SLACK, Witness
from swarm.types import PeerId

ME, OTHER, ALONE = PeerId("learner-0"), PeerId("learner-1"), PeerId("learner-3")
MATCH, LATER = 2.0, 1e9


def witness(until: int, took: float = 1.0) -> Witness:
    """Of the versions 1 to `until`, each of which took so long, from second 0 on."""
    made = Witness(MATCH)
    for version in range(until):
        made.averaged(version, (ME, OTHER), version * took)
    return made


def test_it_denies_what_goes_on_from_its_version_or_stands_beside_it_whoever_was_heard_when() -> None:
    for theirs, parts in ((6, 5), (7, 5), (5, 4)):
        assert witness(5).denies(5, theirs, ALONE, parts, heard_since=LATER)


def test_it_does_not_deny_what_a_member_of_its_round_publishes() -> None:
    assert not witness(5).denies(5, 5, OTHER, 4, heard_since=0.0)
    assert not witness(6).denies(5, 6, OTHER, 5, heard_since=0.0)
    assert witness(6).denies(5, 6, ALONE, 5, heard_since=0.0)


def test_a_line_that_parts_further_back_is_denied_only_if_its_publisher_was_heard_since() -> None:
    """The version after 2 was made in second 2."""
    assert witness(5).denies(5, 9, ALONE, 2, heard_since=1.9)
    assert not witness(5).denies(5, 9, ALONE, 2, heard_since=2.1), "it may have been cut off"
    assert not witness(5).denies(5, 9, ALONE, None, heard_since=0.0), "nobody shows where it parts"


def test_it_is_a_witness_until_no_round_comes_about_and_again_after_the_next_one() -> None:
    made = witness(5)
    assert made.stands(5, now=4.0)
    made.gave_up(5)
    assert not made.stands(5, now=4.0)
    made.averaged(5, (ME, OTHER), 6.0)
    assert made.stands(5, now=6.0), "the round's release is to come"
    assert made.stands(6, now=6.0)


def test_who_takes_over_a_state_is_none_whatever_comes_of_it_until_the_next_round() -> None:
    """Its round made version 6, which is not released yet: others have heard that it is no witness."""
    made = witness(5)
    made.averaged(5, (ME, OTHER), 6.0)
    made.left()
    assert not made.stands(5, now=6.0) and not made.stands(6, now=6.0)
    made.averaged(6, (ME, OTHER), 7.0)
    assert made.stands(6, now=7.0)


def test_it_waits_for_the_next_round_for_some_times_what_the_last_version_took() -> None:
    made = witness(5, took=10.0)
    until = 40.0 + SLACK * (10.0 + MATCH)
    assert made.stands(5, until - 0.1) and not made.stands(5, until)


def test_who_takes_another_line_is_a_witness_of_nothing() -> None:
    made = witness(5)
    made.took()
    assert not made.stands(5, now=4.0)
