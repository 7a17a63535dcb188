"""Sorting: the digits in order, and no held-out answer in training."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarm import tasks
from swarm.settings.config import TaskSettings


@given(st.integers(0, 10**6), st.integers(2, 12))
def test_the_answer_is_the_prompts_digits_in_order(index: int, digits: int) -> None:
    task = tasks.source(TaskSettings(name="sorting", options={"digits": digits}), 1).task(index)
    assert task.prompt[-1] == "=" and len(task.prompt) == digits + 1
    assert list(task.answer) == sorted(task.prompt[:-1])


def test_no_arrangement_of_a_held_out_answer_occurs_in_training_or_in_the_warm_start() -> None:
    source = tasks.source(TaskSettings(name="sorting"), 1)
    trained = {source.task(i).answer for i in range(5000)} | {source.example(i)[1] for i in range(5000)}
    assert not trained & {task.answer for task in source.held_out(500)}


def test_the_smallest_exercises_have_both_a_training_and_a_held_out_half() -> None:
    source = tasks.source(TaskSettings(name="sorting", options={"digits": 2}), 1)
    assert source.task(0).answer and source.held_out(1)


@given(st.text("0123456789", max_size=7))
def test_only_the_digits_in_order_are_worth_anything(text: str) -> None:
    source = tasks.source(TaskSettings(name="sorting"), 1)
    task = source.task(0)
    assert source.reward(task, text) == float(text == task.answer)


def test_partial_credit_counts_the_digits_in_their_places() -> None:
    source = tasks.source(TaskSettings(name="sorting", options={"digits": 5, "partial": True}), 1)
    task = source.task(0)
    assert source.reward(task, task.answer[:4] + "x") == 0.8
    assert source.reward(task, task.answer + "00000") == 0.5


def test_a_number_of_digits_that_does_not_fit_the_policy_is_refused() -> None:
    with pytest.raises(ValueError, match="2 to 60"):
        tasks.source(TaskSettings(name="sorting", options={"digits": 61}), 1)
