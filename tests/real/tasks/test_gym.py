"""Exercises of reasoning-gym: the same on every peer, scored by their authors, two halves that do not
touch."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from process_tree import children

from swarm import tasks
from swarm.settings import config
from swarm.tasks.base import CodePolicy, RewardError, TaskError
from swarm.tasks.workers import gym as gyms
from swarm.tasks.workers import sandbox

pytestmark = pytest.mark.skipif(
    find_spec("reasoning_gym") is None, reason="reasoning-gym is not installed: pip install 'gepo-swarm[gym]'"
)
works = pytest.mark.skipif(bool(sandbox.missing()), reason=sandbox.missing() or "it works")
SUMS = ("chain_sum", 3, {})
NO_ANSWER = r"answered with something that is not an answer"
HERE: CodePolicy = "trust" if sandbox.missing() else "sandbox"
"""How these tests, whose texts do no harm, run a worker."""


@pytest.fixture(scope="module")
def gym() -> Iterator[gyms.Gym]:
    made = gyms.make("chain_sum", 3, {"tag": "answer", "size": 600}, 10.0, HERE)
    yield made
    made.close()


@pytest.fixture(scope="module")
def gym_worker() -> ModuleType:
    """It imports reasoning-gym, two seconds that are not each test run's."""
    from swarm.tasks.workers import gym_worker

    return gym_worker


# --- over the worker ----------------------------------------------------------------------------------------


def test_tasks_are_those_of_the_seed_and_scored_by_their_author(
    gym: gyms.Gym, gym_worker: ModuleType
) -> None:
    for task in (gym.task(0), gym.task(555), gym.held_out(20)[17]):
        assert (task.prompt, task.answer) == gym_worker.training(*SUMS, task.index)
        said = [f"Well. <answer>{task.answer}</answer>", task.answer, "<answer></answer>"]
        assert gym.rewards(task, said) == [1.0, 0.0, 0.0]


def test_a_size_bounds_the_different_exercises(gym: gyms.Gym) -> None:
    first, again = gym.task(3), gym.task(603)
    assert (first.prompt, first.index, again.index) == (again.prompt, 3, 603)
    assert gym.rewards(again, [f"<answer>{again.answer}</answer>"]) == [1.0]


def test_held_out_tasks_have_their_own_indices_and_more_of_them_begin_with_the_same(gym: gyms.Gym) -> None:
    few, many = gym.held_out(3), gym.held_out(40)
    assert many[:3] == few and [task.index for task in many] == [-1 - i for i in range(40)]


def test_an_unknown_name_is_refused_before_a_run_begins() -> None:
    before = children()
    with pytest.raises(
        TaskError,
        match=r"gym:chain_sums: reasoning-gym has no exercise 'chain_sums' \(did you mean 'chain_sum'",
    ):
        tasks.source(config.TaskSettings(name="gym:chain_sums"), 1, texts=HERE)
    assert not children() - before


def test_own_options_are_checked_at_once() -> None:
    with pytest.raises(TaskError, match="tag is a word and size a number from 0"):
        gyms.Gym("chain_sum", 1, {"size": -1}, 10.0)


def test_it_is_found_by_its_name_and_imports_nothing_slow_here() -> None:
    code = (
        "import sys\nfrom swarm import tasks\nfrom swarm.settings import config\n"
        f"s = tasks.source(config.TaskSettings(name='gym:chain_sum'), 1, texts={HERE!r})\n"
        "assert s.environment == 'gym:chain_sum' and s.slow\n"
        "assert not {'reasoning_gym', 'torch'} & set(sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.nightly
def test_other_rewards_can_be_named_for_it() -> None:
    source = tasks.source(config.TaskSettings(name="gym:chain_sum", rewards=("math",)), 1, texts=HERE)
    task = source.task(0)
    assert source.rewards(task, [f"\\boxed{{{task.answer}}}", "no"]) == [1.0, 0.0]
    source.close()


# --- texts that are code ------------------------------------------------------------------------------------


@pytest.fixture
def evaluating() -> Iterator[gyms.Gym]:
    """An exercise whose author calls `eval` with an answer."""
    made = gyms.make("string_insertion", 1, {}, 20.0)
    yield made
    made.close()


@works
def test_a_text_that_is_code_reaches_nothing_of_this_machine(evaluating: gyms.Gym, tmp_path: Path) -> None:
    task, written = evaluating.task(0), tmp_path / "written"
    harmful = f"__import__('os').system('id -un >> {written}')"
    tells = f"'{task.answer}' if __import__('os').access({str(tmp_path)!r}, 0) else 'nothing'"
    assert evaluating.rewards(task, [harmful, f"[{tells}]", task.answer])[1:] == [0.0, 1.0]
    assert not written.exists()


@works
def test_what_a_text_makes_of_the_worker_is_an_error_and_no_exercise(
    evaluating: gyms.Gym, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The text runs as code in the worker: its answers are data of a stranger from then on."""
    task = evaluating.task(0)
    inside = "__import__('sys').modules['swarm.tasks.workers.gym_worker'].__dict__"
    evaluating.rewards(task, [f"{inside}.update(_question_and_answer=lambda exercise: ['?', 1, []])"])
    with pytest.raises(TaskError, match=NO_ANSWER):
        evaluating.task(1)
    with pytest.raises(TaskError, match=NO_ANSWER):
        evaluating.held_out(1)
    said = "iter([1.0, __import__('math').nan, 1.0, 'much'])"
    evaluating.rewards(task, [f"{inside}.update(float=lambda value, said={said}: next(said))"])
    for _ in range(2):
        with pytest.raises(RewardError, match=NO_ANSWER):
            evaluating.rewards(task, [task.answer, task.answer])
    monkeypatch.setattr(evaluating._worker, "ask", lambda *_: [1.0])
    with pytest.raises(RewardError, match="no row of 2 rewards"):
        evaluating.rewards(task, [task.answer, task.answer])


def test_where_no_sandbox_is_texts_are_run_by_consent_alone(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    settings = config.TaskSettings(name="gym:chain_sum")
    monkeypatch.setenv("PATH", str(tmp_path))
    sandbox.missing.cache_clear()
    try:
        for how in ({}, {"code": "trust"}, {"texts": "sandbox"}):
            with pytest.raises(sandbox.NoSandbox, match=r"gym:.*bubblewrap.*--set peer.rewards.code=trust"):
                tasks.source(settings, 1, **how)  # type: ignore[arg-type]
        with pytest.raises(TaskError, match=r"gym:chain_sum .*peer.rewards.code = refuse"):
            tasks.source(settings, 1, texts="refuse")
        trusted = tasks.source(settings, 1, texts="trust")
        assert trusted.rewards(trusted.task(0), [trusted.task(0).answer]) == [1.0]
        trusted.close()
    finally:
        sandbox.missing.cache_clear()


# --- inside -------------------------------------------------------------------------------------------------


def test_an_exercise_is_a_function_of_seed_and_index(gym_worker: ModuleType) -> None:
    indices = [0, 1, 499, 500, 10**7]
    first = [gym_worker.training(*SUMS, i) for i in indices]
    gym_worker._chunk.cache_clear()
    assert [gym_worker.training(*SUMS, i) for i in reversed(indices)] == first[::-1]
    assert [gym_worker.training("chain_sum", 4, {}, i) for i in indices] != first


def test_held_out_questions_are_never_trained_on_also_where_there_are_few(gym_worker: ModuleType) -> None:
    small = ("chain_sum", 1, {"max_terms": 2, "max_digits": 1})
    held = [question for question, _ in gym_worker.held_out(*small, 0, 1000)]
    assert 0 < len(held) < 100, "there are two hundred such sums: a part of them"
    assert len(set(held)) == len(held)
    assert not {gym_worker.training(*small, i)[0] for i in range(600)} & set(held)


def test_exercises_that_know_their_number_are_drawn_from_chunks(gym_worker: ModuleType) -> None:
    """word_ladder makes no exercise beyond its size."""
    _, answer = gym_worker.training("word_ladder", 1, {}, 12_345)
    assert gym_worker.scores("word_ladder", 1, {}, 12_345, "", [answer, "x"]) == [1.0, 0.0]


def test_an_author_who_parses_without_care_gives_nothing_and_ends_nothing(gym_worker: ModuleType) -> None:
    _, answer = gym_worker.training("prime_factorization", 1, {}, 0)
    assert gym_worker.scores("prime_factorization", 1, {}, 0, "", ["two times three", f" {answer}\n"]) == [
        0.0,
        1.0,
    ]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"max_term": 3}, "no option 'max_term' (did you mean 'max_terms'?); it has min_terms"),
        ({"max_terms": "3"}, "option max_terms is '3', it has to be of type int"),
        ({"max_terms": 1}, "refuses these options: max_terms must be >= min_terms"),
        ({"seed": 1}, "no option 'seed'"),
    ],
)
def test_options_that_an_exercise_does_not_have_are_told(
    gym_worker: ModuleType, options: dict[str, Any], says: str
) -> None:
    assert says in gym_worker.problem("chain_sum", 1, options)
    assert gym_worker.problem("chain_sum", 1, {"max_terms": 3}) == ""
