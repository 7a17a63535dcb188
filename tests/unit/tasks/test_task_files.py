"""A run's task files: what is on one machine alone goes to all, and everybody works with the same bytes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import datasets
import pytest

from swarm.settings.config import TaskSettings
from swarm.tasks import catalog as tasks
from swarm.tasks.base import Exercises, TaskError
from swarm.tasks.data import task_files
from swarm.tasks.rendered import Rendered
from swarm.types import Message, Task


@pytest.fixture(autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path_factory.getbasetemp() / "datasets")


def here(folder: Path) -> TaskSettings:
    """A data set with two splits and two reward functions in one file and one in another, all in `folder`."""
    (folder / "data").mkdir(parents=True)
    for split, count in (("train", 40), ("test", 5)):
        lines = [{"question": f"{split} {i}", "answer": str(i)} for i in range(count)]
        (folder / "data" / f"{split}.jsonl").write_text("\n".join(map(json.dumps, lines)))
    worth = "def {}(completions, **_):\n    return [{}] * len(completions)\n\n\n"
    (folder / "one.py").write_text(worth.format("f", 1.0) + worth.format("g", 10.0))
    (folder / "two.py").write_text(worth.format("f", 100.0))
    return TaskSettings(
        name=f"data:{folder}/data",
        options={"held_out_split": "test"},
        rewards=(f"{folder}/one.py:f", "exact", f"{folder}/two.py:f", f"{folder}/one.py:g"),
    )


def test_a_joiner_has_the_same_tasks_and_rewards_without_the_owners_disk(tmp_path: Path) -> None:
    settings = here(tmp_path / "owner")
    task_files.pack(settings, tmp_path / "run" / "task")
    packed = sorted(path.name for path in (tmp_path / "run" / "task").iterdir())
    assert packed == ["data.parquet", "held-out.parquet", "rewards-0.py", "rewards-1.py"]
    assert all(task_files.NAME.fullmatch(name) for name in packed)
    there = tasks.source(settings, 3)
    expected = ([there.task(i) for i in range(50)], there.held_out(9))
    there.close()
    (tmp_path / "owner").rename(tmp_path / "gone")
    joined = tasks.source(settings, 3, folder=tmp_path / "run" / "task")
    assert ([joined.task(i) for i in range(50)], joined.held_out(9)) == expected
    task = joined.task(0)
    assert joined.rewards(task, [task.answer, "x"]) == [112.0, 111.0]
    assert sorted(path.name for path in (tmp_path / "run" / "task").iterdir()) == packed
    joined.close()


def test_a_built_in_task_has_no_files(tmp_path: Path) -> None:
    task_files.pack(TaskSettings(), tmp_path / "task")
    assert not (tmp_path / "task").exists()


def test_more_than_a_run_carries_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = here(tmp_path / "owner")
    monkeypatch.setattr(task_files, "LARGEST", 100)
    with pytest.raises(TaskError, match=r"as parquet, a run carries at most.*Hub"):
        task_files.pack(settings, tmp_path / "task")
    monkeypatch.setattr(task_files, "LARGEST", 1 << 20)
    monkeypatch.setattr(task_files, "LARGEST_CODE", 10)
    with pytest.raises(TaskError, match="of reward code"):
        task_files.pack(settings, tmp_path / "task")


def test_a_hub_data_set_is_pinned_to_its_commit_and_local_ones_are_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []

    def info(self: Any, name: str, revision: str | None, timeout: float) -> Any:
        asked.append((name, revision))
        return SimpleNamespace(sha="c0ffee")

    monkeypatch.setattr("huggingface_hub.HfApi.dataset_info", info)
    settings = TaskSettings(name="data:org/set", options={"split": "train"})
    assert task_files.pinned(settings).options == {"split": "train", "revision": "c0ffee"}
    local = here(tmp_path / "owner")
    assert task_files.pinned(local) is local and task_files.pinned(TaskSettings()).name == "digit-sums"
    assert asked == [("org/set", None)]


def test_without_a_network_the_revision_stays_open(monkeypatch: pytest.MonkeyPatch) -> None:
    def unreachable(*words: Any, **more: Any) -> Any:
        raise ConnectionError("no route")

    monkeypatch.setattr("huggingface_hub.HfApi.dataset_info", unreachable)
    settings = TaskSettings(name="data:org/set")
    assert task_files.pinned(settings) is settings


class Asked(Exercises):
    """A source of conversations that remembers what it was asked to score."""

    environment = "asked"

    def __init__(self) -> None:
        self.scored: list[Task] = []

    def task(self, index: int) -> Task:
        turns = (Message(role="user" if index != 3 else "tool", content=f"q{index}"),)
        return Task(environment="asked", index=index, prompt=f"q{index}", answer="", messages=turns)

    def held_out(self, n: int) -> list[Task]:
        return [self.task(-1 - i) for i in range(n)]

    def reward(self, task: Task, completion: str) -> float:
        self.scored.append(task)
        return 1.0


def template(tasks: Sequence[Task]) -> list[str]:
    if any(task.messages[-1].role == "tool" for task in tasks):
        raise ValueError("this template knows no tools")
    return [f"<{task.messages[-1].content}>" for task in tasks]


def test_rendered_prompts_are_what_the_model_reads_and_rewards_see_what_the_source_made() -> None:
    plain = Asked()
    source = Rendered(plain, template)
    tasks_ = [source.task(0), source.task(7), *source.held_out(2)]
    assert [task.prompt for task in tasks_] == ["<q0>", "<q7>", "<q-1>", "<q-2>"]
    for task in tasks_:
        source.rewards(task, ["x"])
    assert [task.prompt for task in plain.scored] == ["q0", "q7", "q-1", "q-2"]


def test_one_conversation_that_the_template_cannot_write_is_given_plainly_and_said_once() -> None:
    told: list[str] = []
    source = Rendered(Asked(), template, told.append)
    assert source.task(3).prompt == source.task(3).prompt == "q3"
    assert [task.prompt for task in source.tasks([2, 3, 4])] == ["<q2>", "q3", "<q4>"]
    assert len(told) == 1 and "knows no tools" in told[0]


def test_a_template_that_cannot_write_the_first_task_is_refused() -> None:
    def never(tasks: Sequence[Task]) -> list[str]:
        raise ValueError("this template takes no system message")

    with pytest.raises(ValueError, match="no system message"):
        Rendered(Asked(), never)
