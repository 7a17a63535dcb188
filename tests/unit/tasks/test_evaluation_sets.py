"""Evaluation sets: what they take over from the run's task, and that none of their rows is trained."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import datasets
import pytest

from swarm.settings.config import Evaluation, EvaluationSet, Run, TaskSettings
from swarm.tasks import catalog, evaluation_sets
from swarm.tasks.base import TaskError
from swarm.tasks.data import task_files
from swarm.tasks.rendered import Rendered
from swarm.types import Message, Task


@pytest.fixture(autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path_factory.getbasetemp() / "datasets")


def lines(path: Path, prompts: Sequence[str]) -> str:
    path.write_text("\n".join(json.dumps({"q": prompt, "a": f"so #### {prompt}!"}) for prompt in prompts))
    return f"data:{path}"


COLUMNS: dict[str, int | float | str | bool] = {"prompt": "q", "answer": "a", "answer_after": "####"}


def completed(task: TaskSettings, one: EvaluationSet) -> TaskSettings:
    return evaluation_sets.settings(Run(task=task, evaluation=Evaluation(sets={"hard": one})))["hard"]


def test_a_set_says_only_what_differs_from_the_task_of_the_run() -> None:
    task = TaskSettings(
        name="data:train.jsonl",
        options={**COLUMNS, "held_out_split": "test"},
        rewards=("exact", "math"),
        weights=(1.0, 0.5),
        system="Be brief.",
    )
    other = completed(task, EvaluationSet(name="data:test.jsonl", options={"subset": "x"}))
    assert other.options == {**COLUMNS, "subset": "x", "held_out": 0.0, "held_out_split": ""}
    assert (other.rewards, other.weights, other.system) == (task.rewards, task.weights, "Be brief.")
    own = completed(task, EvaluationSet(rewards=("math",), system="Answer."))
    assert (own.name, own.rewards, own.weights, own.system) == (task.name, ("math",), (), "Answer.")
    built_in = completed(task, EvaluationSet(name="brackets"))
    assert (built_in.options, built_in.rewards, built_in.weights) == ({}, (), ())
    longer = completed(
        TaskSettings(name="digit-sums", options={"digits": 3, "partial": True}, rewards=("exact",)),
        EvaluationSet(options={"digits": 6}),
    )
    assert longer.options == {"digits": 6, "partial": True} and longer.rewards == ("exact",)


def test_an_option_that_would_hold_rows_out_is_refused() -> None:
    with pytest.raises(TaskError, match=r"sets\.hard\.options\.held_out would hold rows .*: leave it out"):
        completed(TaskSettings(), EvaluationSet(name="data:x.jsonl", options={"held_out": 0.5}))


def test_rows_of_trained_prompts_and_of_long_ones_are_left_out_and_counted(tmp_path: Path) -> None:
    task = TaskSettings(
        name=lines(tmp_path / "train.jsonl", [f"{i} + 1" for i in range(40)]), options=COLUMNS
    )
    trained = catalog.data(task, 1).prompts()
    asked = [f"{i}  + 1" for i in range(0, 60, 2)] + ["77 + 1"] * 3 + ["a very long one"]
    one = completed(task, EvaluationSet(name=lines(tmp_path / "test.jsonl", asked)))
    told: list[str] = []

    def fits(tasks: Sequence[Task]) -> list[bool]:
        return [len(task.prompt) < 10 for task in tasks]

    known = {task.prompt for task in catalog.data(task, 1).held_out(99)}
    table = evaluation_sets.rows(one, 1, 256, trained, fits, told.append)
    kept = set(table["q"])
    assert {" ".join(prompt.split()) for prompt in kept} == {
        *(f"{i} + 1" for i in range(40, 60, 2)),
        *(prompt for prompt in known if int(prompt.split()[0]) % 2 == 0),
        "77 + 1",
    }
    assert len(table) == len(kept), "no prompt is there twice"
    assert told == [
        f"{len({*asked} - kept) - 1} of 34 rows are left out: their prompts are trained",
        "1 of 34 rows are left out: the model has no room for their prompts",
    ]
    assert len(evaluation_sets.rows(one, 1, 5, trained, fits, told.append)) == 5
    with pytest.raises(TaskError, match=r"no row of data:.* is left"):
        evaluation_sets.rows(one, 1, 9, trained, lambda some: [False] * len(some), told.append)


def test_a_set_has_all_rows_that_the_run_carries_and_other_sources_their_held_out_exercises(
    tmp_path: Path,
) -> None:
    one = completed(
        TaskSettings(), EvaluationSet(name=lines(tmp_path / "test.jsonl", list("abcdefg")), options=COLUMNS)
    )
    rows = evaluation_sets.rows(one, 1, 256, set(), lambda some: [True] * len(some), print)
    folder = tmp_path / "run" / "task" / "hard"
    task_files.pack(one, folder, rows)
    assert task_files.NAME.fullmatch("hard/data.parquet") and not task_files.NAME.fullmatch("../data.parquet")
    (tmp_path / "test.jsonl").unlink()
    source = catalog.source(one, 1, folder=folder)
    for n in (7, 99):
        drawn = evaluation_sets.drawn(source, one, n)
        assert sorted(task.prompt for task in drawn) == list("abcdefg")
        assert source.rewards(drawn[0], [drawn[0].answer, "?"]) == [1.0, 0.0]
    source.close()
    assert (tmp_path / "run" / "cache").is_dir() and {file.name for file in folder.parent.iterdir()} == {
        "hard"
    }
    brackets = completed(TaskSettings(), EvaluationSet(name="brackets"))
    held = catalog.source(brackets, 1)
    assert evaluation_sets.drawn(held, brackets, 9) == held.held_out(9)


def test_an_error_of_a_set_names_its_settings_instead_of_those_of_the_task() -> None:
    with pytest.raises(TaskError) as caught, evaluation_sets.telling("hard"):
        raise TaskError("no such column: set run.task.options.prompt")
    assert str(caught.value) == (
        "evaluation set hard: no such column: set run.evaluation.sets.hard.options.prompt"
    )


def test_a_mistake_in_one_set_is_not_told_of_another() -> None:
    wrong = EvaluationSet(name="data:test.jsonl", options={"held_out": 0.5})
    run = Run(evaluation=Evaluation(sets={"easy": EvaluationSet(name="brackets"), "hard": wrong}))
    assert evaluation_sets.completed(run, "easy").name == "brackets"
    with pytest.raises(TaskError, match=r"sets\.hard\.options\.held_out would"):
        evaluation_sets.completed(run, "hard")


def test_a_set_has_a_system_message_of_its_own_where_the_row_has_none() -> None:
    read: list[tuple[Message, ...]] = []

    def render(tasks: Sequence[Task]) -> list[str]:
        read.extend(task.messages for task in tasks)
        return [task.prompt for task in tasks]

    source = Rendered(catalog.source(TaskSettings(name="brackets"), 1), render, system="Close them.")
    (task,) = source.held_out(1)
    assert read[-1] == (
        Message(role="system", content="Close them."),
        Message(role="user", content=task.prompt),
    )
    assert source.rewards(task, [task.answer]) == [1.0]
