"""A learner that does not come to rounds is not waited for, but tried now and then."""

from __future__ import annotations

from swarm.core.agreement.missed_rounds import MISSES, RETRY, MissedRounds
from swarm.types import PeerId

A, B = PeerId("learner-a"), PeerId("learner-b")


def missing(peer: PeerId) -> MissedRounds:
    missed = MissedRounds()
    for k in range(MISSES):
        assert missed.expected([A, B], 1) == [A, B]
        assert missed.ended({A, B}, {A, B} - {peer}) == ({peer: MISSES} if k == MISSES - 1 else {})
    return missed


def test_a_learner_that_misses_rounds_in_a_row_is_expected_in_some_versions_only() -> None:
    missed, tries = missing(B), []
    for version in range(1, 3 * RETRY):
        expected = missed.expected([A, B], version)
        assert A in expected
        if B in expected:
            tries.append(version)
            assert B in missed.ended({A, B}, {A})
    assert tries == [2, 4, 8, 16, 32], "more and more seldom, and in versions that both know"


def test_two_that_count_different_misses_try_in_the_same_versions() -> None:
    one, other = missing(B), missing(B)
    for _ in range(5):
        other.ended({B}, set())
    both = [v for v in range(1, 100) if one.expected([B], v) and other.expected([B], v)]
    assert both == [v for v in range(1, 100) if other.expected([B], v)] == [*range(RETRY, 100, RETRY)]


def test_a_common_round_ends_it() -> None:
    missed = missing(B)
    missed.ended({B}, {B})
    assert missed.expected([A, B], 1) == [A, B]
    assert missed.ended({A, B}, {A}) == {}, "counted anew"


def test_a_learner_that_waited_for_no_round_missed_none() -> None:
    missed = MissedRounds()
    for _ in range(2 * MISSES):
        assert missed.ended({A}, {A}) == {}
    assert missed.expected([A, B], 1) == [A, B]


def test_a_learner_that_goes_and_comes_back_is_tried_anew() -> None:
    missed = missing(B)
    assert missed.missed() == {B} and missed.expected([A, B], 1) == [A]
    missed.forget([B])
    assert missed.missed() == set() and missed.expected([A, B], 1) == [A, B]
