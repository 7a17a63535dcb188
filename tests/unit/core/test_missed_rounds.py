"""A learner that does not come to rounds is not waited for, but tried now and then."""

from __future__ import annotations

import pytest

from swarm.core.agreement.missed_rounds import LATES, MISSES, RETRY, MissedRounds
from swarm.types import PeerId

A, B = PeerId("learner-a"), PeerId("learner-b")


def missing(peer: PeerId) -> MissedRounds:
    unmet = MissedRounds()
    for k in range(MISSES):
        assert unmet.expected([A, B], 1) == [A, B]
        unmet.forget({A: 1, B: 1})
        assert unmet.ended({A, B}, {A, B} - {peer}) == ({peer: MISSES} if k == MISSES - 1 else {})
    return unmet


def test_who_misses_several_rounds_in_a_row_is_expected_in_some_versions_only() -> None:
    unmet, tries = missing(B), []
    for version in range(1, 3 * RETRY):
        expected = unmet.expected([A, B], version)
        assert A in expected
        if B in expected:
            tries.append(version)
            unmet.ended({A, B}, {A})
    assert tries == [2, 4, 8, 16, 32], "more and more seldom, and in versions that both know"


def test_a_common_round_ends_it() -> None:
    unmet = missing(B)
    unmet.ended({B}, {B})
    assert unmet.expected([A, B], 1) == [A, B]


def test_who_was_in_no_round_missed_none() -> None:
    unmet = MissedRounds()
    for _ in range(2 * MISSES):
        assert unmet.ended({A}, {A}) == {}
    assert unmet.expected([A, B], 1) == [A, B]


def late(unmet: MissedRounds, rounds: int) -> list[dict[PeerId, int]]:
    return [unmet.ended({A, B}, {A}, late={B}) for _ in range(rounds)]


def test_who_is_late_is_waited_for_longer_and_expected_again_once_it_is_in_time() -> None:
    unmet = MissedRounds()
    assert late(unmet, LATES * MISSES) == [{}] * (LATES * MISSES - 1) + [{B: MISSES}]
    assert unmet.expected([A, B], 1) == [A]
    assert unmet.ended({A, B}, {A}) == {} and unmet.expected([A, B], 1) == [A, B]
    late(unmet, LATES)
    assert unmet.ended({A, B}, {A}) == {B: MISSES}, "not again without a common round"
    unmet.ended({A, B}, {A, B})
    assert unmet.expected([A, B], 1) == [A, B]


def test_who_stood_still_is_tried_once_it_moves_and_no_second_time_without_a_common_round() -> None:
    unmet = MissedRounds()
    for _ in range(2):
        for _ in range(MISSES):
            unmet.ended({A, B}, {A}, still={B})
        assert unmet.expected([A, B], 1) == [A]
        unmet.moved([A, B])
        assert unmet.expected([A, B], 1) == [A, B]
        unmet.ended({A, B}, {A})
        assert unmet.expected([A, B], 1) == [A], "it missed that, too"
        unmet.ended({A, B}, {A}, still={B})
        unmet.moved([A, B])
        assert unmet.expected([A, B], 1) == [A]
        unmet.ended({A, B}, {A, B})


@pytest.mark.parametrize("here", [{A: 1}, {A: 1, B: 2}])
def test_who_goes_and_comes_back_or_starts_again_is_tried_anew(here: dict[PeerId, int]) -> None:
    unmet = missing(B)
    unmet.forget({A: 1, B: 1})
    assert unmet.expected([A, B], 1) == [A]
    unmet.forget(here)
    assert unmet.expected([A, B], 1) == [A, B]


def test_two_between_which_a_state_goes_try_at_once_and_again_more_and_more_seldom() -> None:
    unmet, tries = missing(B), []
    for state in range(1, 10):
        unmet.shared_state(B)
        if B in unmet.expected([A, B], 1):
            tries.append(state)
            unmet.ended({A, B}, {A})
    assert tries == [1, 2, 4, 8]
    unmet.ended({A, B}, {A, B})
    for _ in range(MISSES):
        unmet.ended({A, B}, {A})
    assert unmet.expected([A, B], 1) == [A]
    unmet.shared_state(B)
    assert unmet.expected([A, B], 1) == [A, B], "after a common round at once again"


def test_who_was_started_again_has_shared_no_state() -> None:
    unmet = missing(B)
    unmet.shared_state(B)
    unmet.ended({A, B}, {A})
    unmet.forget({A: 1, B: 2})
    for _ in range(MISSES):
        unmet.ended({A, B}, {A})
    unmet.shared_state(B)
    assert unmet.expected([A, B], 1) == [A, B]
