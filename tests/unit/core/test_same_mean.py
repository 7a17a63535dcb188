"""Who got another mean than most of its round, by what each member says."""

from __future__ import annotations

from swarm.core.gradient_checks.same_mean import are_two, got_another, mark

NOW, BEFORE = "0a" * 32, "0b" * 32
TRUE, FALSE, OTHER = (mark(NOW, bytes([k]) * 32) for k in range(3))


def test_one_that_says_so_got_another_mean() -> None:
    assert got_another({"a": TRUE, "b": TRUE, "c": FALSE}, 3) == {"c"}
    assert got_another({"a": TRUE, "b": TRUE, "c": TRUE, "d": FALSE, "e": OTHER}, 5) == {"d", "e"}


def test_where_no_mean_is_that_of_more_than_half_nobody_is_found() -> None:
    assert got_another({"a": TRUE, "b": TRUE, "c": FALSE, "d": FALSE}, 4) == set()
    assert got_another({"a": TRUE, "b": FALSE, "c": OTHER}, 3) == set()
    assert got_another({"a": TRUE, "b": TRUE, "c": FALSE}, 5) == set(), "of two nothing was heard"


def test_who_says_nothing_of_this_round_is_not_found() -> None:
    before = mark(BEFORE, b"\2" * 32)
    assert got_another({"a": TRUE, "b": TRUE, "c": before, "d": b"", "e": TRUE}, 5) == set()
    assert got_another({"a": b"", "b": b"", "c": TRUE}, 3) == set()
    assert got_another({}, 3) == set()


def test_two_means_are_of_one_round_or_not_compared() -> None:
    assert are_two(TRUE, FALSE) and not are_two(TRUE, TRUE)
    assert not are_two(TRUE, mark(BEFORE, b"\2" * 32)) and not are_two(b"", TRUE) and not are_two(TRUE, b"")


def test_a_mean_that_was_got_twice_has_two_names_where_the_weights_differ() -> None:
    assert mark(NOW, b"\2" * 32) != mark(BEFORE, b"\2" * 32)
