"""Brackets: several right answers, told from wrong ones as a grammar does."""

from __future__ import annotations

from collections import Counter
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarm import tasks
from swarm.settings.config import TaskSettings
from swarm.tasks.builtin.brackets import PAIRS, Brackets

SOURCE = Brackets(1, {})


def balanced(word: str) -> bool:
    """The grammar's other definition: what is left when pairs are struck out until there are none."""
    before = ""
    while before != word:
        before = word
        for pair in PAIRS:
            word = word.replace(pair, "")
    return not word


@given(st.integers(0, 10**6), st.text("()[]{}<>", max_size=7))
def test_an_answer_is_right_exactly_when_the_whole_is_balanced_and_it_is_short_enough(
    index: int, text: str
) -> None:
    task = SOURCE.task(index)
    for completion in (text, task.answer + text, text + task.answer):
        right = balanced(task.prompt + completion) and len(completion) <= SOURCE.limit
        assert SOURCE.reward(task, completion) == float(right)


@given(st.integers(0, 10**6))
def test_every_exercise_has_right_answers_of_two_lengths(index: int) -> None:
    task = SOURCE.task(index)
    right = [
        task.answer[:place] + pair + task.answer[place:]
        for pair in PAIRS
        for place in range(len(task.answer) + 1)
    ]
    assert len(set(right)) >= 4
    assert all(SOURCE.reward(task, answer) == 1.0 for answer in [task.answer, *right])


def test_no_fixed_answer_wins_a_tenth_of_the_exercises() -> None:
    exercises = [SOURCE.task(i) for i in range(1000)]
    fixed = ["".join(word) for n in (1, 2) for word in product(SOURCE.characters, repeat=n)]
    fixed += [answer for answer, _ in Counter(task.answer for task in exercises).most_common(50)]
    assert max(sum(SOURCE.reward(task, answer) for task in exercises) for answer in fixed) < 100


def test_examples_are_right_and_not_always_the_shortest() -> None:
    lengths = set()
    for prefix, answer in map(SOURCE.example, range(300)):
        assert balanced(prefix + answer) and len(answer) <= SOURCE.limit
        lengths.add((len(answer), len(prefix)))
    assert {length for length, _ in lengths} == {1, 2, 3, 4, 5}
    assert {length for _, length in lengths} == set(range(SOURCE.shortest, SOURCE.longest + 1))


@given(
    st.integers(2, 6).flatmap(lambda d: st.tuples(st.just(d), st.integers(d, 12), st.integers(d + 2, 9))),
    st.integers(4, 9),
    st.integers(2, 4),
    st.integers(0, 99),
)
def test_every_choice_of_options_makes_the_exercises_it_describes(
    sizes: tuple[int, int, int], more: int, kinds: int, index: int
) -> None:
    depth, shortest, limit = sizes
    options = {
        "depth": depth,
        "shortest": shortest,
        "longest": shortest + more,
        "kinds": kinds,
        "limit": limit,
    }
    source = Brackets(1, options)
    for task in (source.task(index), source.held_out(1)[0]):
        assert shortest <= len(task.prompt) <= shortest + more
        assert 1 <= len(task.answer) <= depth
        assert set(task.prompt) <= set("".join(PAIRS[:kinds]))


@given(st.text("()[]{}<>", max_size=8))
def test_partial_credit_is_full_only_for_a_right_answer(text: str) -> None:
    source = Brackets(1, {"partial": True})
    task = source.task(0)
    credit = source.reward(task, text)
    assert (credit == 1.0) == (SOURCE.reward(task, text) == 1.0)
    assert 0.0 <= credit <= 1.0


def test_partial_credit_counts_what_was_closed_before_the_first_mistake() -> None:
    source = Brackets(1, {"partial": True})
    task = next(task for task in map(source.task, range(100)) if len(task.answer) == 3)
    wrong = next(c for _, c in PAIRS if c != task.answer[1])
    assert source.reward(task, task.answer[0] + wrong + task.answer) == 0.25
    assert source.reward(task, task.answer + "()()") == 0.75


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"depth": 4}, "depth .* 2 to 3"),
        ({"shortest": 9}, "shortest .* 2 to 8"),
        ({"shortest": 3, "longest": 5}, "longest .* 6 to 80"),
        ({"kinds": 5}, "2 to 4"),
        ({"limit": 3}, "4 to 40"),
    ],
)
def test_options_that_contradict_each_other_are_refused(options: dict, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        tasks.source(TaskSettings(name="brackets", options=options), 1)
