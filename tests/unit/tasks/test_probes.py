"""What is tried on rewards before a run: answers, what is none, and all of it twice."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import datasets
import pytest

from peers.commands.runs.up import PeerProcess
from swarm.settings.config import TaskSettings
from swarm.tasks import catalog
from swarm.tasks.base import Exercises, TaskError, TaskSource
from swarm.tasks.rewards import probes
from swarm.types import Task

REFUSAL = 'a refusal ("I do not know.")'


class Sums(Exercises):
    environment = "sums"

    def __init__(self, worth: Callable[[Task, str], float]) -> None:
        self.worth = worth

    def task(self, index: int) -> Task:
        return Task(environment="sums", index=index, prompt=f"What is {index} + 1?", answer=str(index + 1))

    def held_out(self, n: int) -> list[Task]:
        return []

    def reward(self, task: Task, completion: str) -> float:
        return self.worth(task, completion)


def right(task: Task, completion: str) -> float:
    return float(completion == task.answer)


@pytest.mark.parametrize(
    ("worth", "says"),
    [
        (right, []),
        (lambda task, said: right(task, said) - 0.5, []),
        (lambda task, said: 1.0, ["Every answer that was tried earns 1, right, wrong or none"]),
        (lambda task, said: 0.0, ["Every answer that was tried earns 0, right, wrong or none"]),
        (
            lambda task, said: float(said in task.prompt or right(task, said)),
            ["The prompt itself earns 1 in 3"],
        ),
        (
            lambda task, said: float(not said.isdigit() or right(task, said)),
            [f"an empty answer earns 1 in 3 of 3 exercises, {REFUSAL} earns 1"],
        ),
        (
            lambda task, said: -len(said) - 100 * (said.isdigit() and not right(task, said)),
            ["An empty answer earns 0 in 3"],
        ),
    ],
)
def test_rewards_that_pay_for_no_answer_or_tell_nothing_apart_are_told(
    worth: Callable[[Task, str], float], says: Sequence[str]
) -> None:
    found = probes.of_new_run(Sums(worth))
    assert len(found) == len(says) and all(part in told for part, told in zip(says, found, strict=True)), (
        found
    )


def test_a_reward_that_is_not_the_same_number_twice_begins_no_run() -> None:
    count = iter(range(1000))
    with pytest.raises(TaskError, match=r"not the same number twice: '1' earned 0, then 7\. .*take chance"):
        probes.of_new_run(Sums(lambda task, said: float(next(count))))


FUNCTIONS = """
import random


def judge(completions, **columns):
    return [random.random() for _ in completions]


def sometimes(completions, **columns):
    return [float(c) if c.isdigit() else None for c in completions]


def first(completions, **columns):
    return [float(c.split()[0] == "5") for c in completions]


def odd(completions, answer, **columns):
    return [1 / (int(gold) % 2) for gold in answer]
"""


@pytest.fixture
def scored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], TaskSource]:
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    (tmp_path / "mine.py").write_text(FUNCTIONS)
    (tmp_path / "sums.jsonl").write_text(
        "\n".join(f'{{"question": "What is {i} + 1?", "answer": {i + 1}}}' for i in range(20))
    )

    def make(reward: str) -> TaskSource:
        name = reward if reward == "math" else f"{tmp_path}/mine.py:{reward}"
        settings = TaskSettings(
            name=f"data:{tmp_path}/sums.jsonl", rewards=(name,), options={"held_out": 0.0, "shuffle": False}
        )
        return catalog.source(settings, 1)

    return make


def test_functions_of_a_run_are_tried_in_their_process(scored: Callable[[str], TaskSource]) -> None:
    source = scored("judge")
    with pytest.raises(TaskError, match="not the same number twice"):
        probes.of_new_run(source)
    source.close()
    source = scored("first")  # an empty answer costs its group: a run that begins would lose some
    with pytest.raises(TaskError, match=r"mine.py:first raised IndexError: list index out of range"):
        probes.of_new_run(source)
    source.close()
    source = scored("odd")
    lost, same = probes.of_new_run(source)
    assert "1 of the first 3 tasks cannot be scored: " in lost and "ZeroDivisionError" in lost
    assert same.startswith("Every answer that was tried earns 1")
    source.close()
    source = scored("math")
    assert probes.of_new_run(source) == []
    source.close()


def test_a_function_that_does_not_apply_to_what_is_no_answer_pays_nothing_for_it(
    scored: Callable[[str], TaskSource],
) -> None:
    source = scored("sometimes")
    found = probes.tried(source, source.task(4), say="3")
    assert [probe.reward for probe in found.probes] == [None, None, None] and found.problem == ""
    assert found.said is not None and (found.right.reward, found.said.reward) == (5.0, 3.0)
    assert probes.warnings([found]) == []
    source.close()


def test_up_shows_what_the_seed_has_warned_of_since_its_last_start(tmp_path: Path) -> None:
    (tmp_path / "seed.log").write_text("warning: of an earlier start\n")
    seed = PeerProcess("seed", ["--no-such-option"], tmp_path / "seed.log")
    seed.start()
    assert seed.process is not None
    seed.process.wait(60)
    with open(tmp_path / "seed.log", "a") as log:
        log.write("warning: an empty answer earns 1\nall else\n")
    assert seed.warnings() == ["warning: an empty answer earns 1"]
