"""Which learners count, and how many of them are most."""

from __future__ import annotations

from collections.abc import Collection

import pytest

from swarm.core.agreement.electorate import Electorate, are_most, favourite
from swarm.types import PeerId

PATIENCE, WINDOW = 10.0, 100.0
A, B, C, D, E = map(PeerId, "abcde")


def electorate(peers: Collection[PeerId]) -> Electorate:
    """All of them were heard at time 0."""
    known = Electorate(PATIENCE, WINDOW)
    for peer in peers:
        known.heard(peer, 0.0)
    return known


@pytest.mark.parametrize(
    ("some", "electors", "enough"),
    [
        ("", "", False),
        ("", "a", False),
        ("a", "a", True),
        ("", "ab", False),
        ("a", "ab", True),
        ("b", "ab", True),
        ("a", "abc", False),
        ("bc", "abc", True),
        ("a", "abcd", False),
        ("ab", "abcd", True),
        ("ad", "abcd", True),
        ("bc", "abcd", False),
        ("bcd", "abcd", True),
        ("ab", "abcde", False),
        ("cde", "abcde", True),
    ],
)
def test_more_than_half_are_most_and_of_two_halves_the_one_with_the_first_learner(
    some: str, electors: str, enough: bool
) -> None:
    assert are_most([*map(PeerId, some)], [*map(PeerId, electors)]) is enough


def test_of_two_parts_of_more_than_two_learners_at_most_one_is_most() -> None:
    every = (A, B, C, D, E)
    for count in (3, 4, 5):
        electors = every[:count]
        for bits in range(1 << count):
            part = [peer for place, peer in enumerate(electors) if bits >> place & 1]
            assert are_most(part, electors) + are_most({*electors} - {*part}, electors) == 1


@pytest.mark.parametrize(
    ("silent", "counted"),
    [
        ("", "abcd"),
        ("d", "abc"),
        ("cd", "ab"),
        ("ab", "abcd"),
        ("bcd", "abcd"),
    ],
)
def test_the_larger_part_counts_itself_and_the_smaller_one_all(silent: str, counted: str) -> None:
    known = electorate([A, B, C, D])
    assert {*known.electors(PATIENCE)} == {A, B, C, D}, "nobody was silent for longer than that"
    for peer in {A, B, C, D} - {*silent}:
        known.heard(peer, PATIENCE + 0.1)
    assert {*known.electors(PATIENCE + 0.1)} == {*counted}


def test_a_learner_that_loses_all_others_at_once_counts_them_though_it_heard_some_last() -> None:
    known = electorate([A, B, C])
    for now in (PATIENCE / 2, PATIENCE + 0.1, 2 * PATIENCE):
        known.heard(A, now)
        if now < PATIENCE:
            known.heard(B, now)
        assert {*known.electors(now)} == {A, B, C}


def test_learners_that_go_one_after_the_other_count_no_more_one_after_the_other() -> None:
    known, here, now = electorate([A, B, C, D, E]), [A, B, C, D, E], 0.0
    while len(here) > 1:
        here.pop(0)
        now += 2 * PATIENCE
        for peer in here:
            known.heard(peer, now)
        assert {*known.electors(now)} == {*here} and are_most(here, known.electors(now))


def test_a_minority_waits_for_the_window_and_then_goes_on() -> None:
    known = electorate([A, B, C])
    known.heard(A, WINDOW)
    assert {*known.electors(WINDOW)} == {A, B, C} and not are_most([A], known.electors(WINDOW))
    assert {*known.electors(WINDOW + 0.1)} == {A} and are_most([A], [A])


def test_one_of_two_goes_on_without_the_other_at_once() -> None:
    known = electorate([A, B])
    known.heard(B, PATIENCE + 1.0)
    assert {*known.electors(PATIENCE + 1.0)} == {B}


def test_a_peer_that_hears_no_learner_any_more_counts_all_until_the_window_is_over() -> None:
    known = electorate([A, B, C])
    assert {*known.electors(WINDOW)} == {A, B, C} and not known.electors(WINDOW + 0.1)


def test_a_learner_that_leaves_or_comes_back_counts_at_once() -> None:
    known = electorate([A, B, C])
    known.left(C)
    known.left(D)
    assert {*known.electors(0.0)} == {A, B}
    known.heard(C, 1.0)
    assert {*known.electors(1.0)} == {A, B, C}


@pytest.mark.parametrize(
    ("votes", "order", "choice"),
    [
        ({}, (), ""),
        ({A: "x"}, (A,), "x"),
        ({A: "x", B: "y", C: "y"}, (A, B, C), "y"),
        ({A: "x", B: "y"}, (B, A), "y"),
        ({A: "x", B: "y", C: "z"}, (C, A, B), "z"),
        ({A: "x", B: "y", C: "x", D: "y"}, (D, C, B, A), "y"),
        ({B: "y", A: "x"}, (), "x"),
        ({A: "x", B: "y"}, (B,), "y"),
    ],
)
def test_the_favourite_has_most_votes_or_is_that_of_the_first_in_the_order(
    votes: dict[PeerId, str], order: tuple[PeerId, ...], choice: str
) -> None:
    assert favourite(votes, order) == choice
