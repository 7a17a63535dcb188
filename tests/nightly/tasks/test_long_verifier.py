"""Tasks of a verifiers package, made here, in the process that verifiers runs in: this Python's, or
SWARM_VERIFIERS_PYTHON's."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator
from typing import Any

import pytest

from swarm import tasks
from swarm.settings import config
from swarm.tasks.base import RewardError, TaskError
from swarm.tasks.workers.verifier import PYTHON, Verifier

there = pytest.mark.skipif(
    not os.environ.get(PYTHON) and importlib.util.find_spec("verifiers") is None,
    reason=(
        f"verifiers is not installed: pip install 'gepo-swarm[verifiers]', or set {PYTHON} to a Python that"
        " has it"
    ),
)


PACKAGE = """
import time
import verifiers.v1 as vf

__all__ = ["SumsTaskset"]

class SumsData(vf.TaskData):
    answer: str

class SumsTask(vf.Task[SumsData]):
    @vf.reward(weight=2.0)
    async def right(self, trace: vf.Trace) -> float:
        if trace.last_reply == "hang":
            time.sleep(600)
        return float(trace.last_reply == self.data.answer)

    @vf.reward
    async def short(self, task: SumsData, trace: vf.Trace) -> float:
        return 0.5 if len(trace.last_reply) < 4 else 0.0

class SumsConfig(vf.TasksetConfig):
    largest: int = 5
    system: bool = False

class SumsTaskset(vf.Taskset[SumsTask, SumsConfig]):
    def load(self):
        for a in range(self.config.largest):
            for b in range(self.config.largest):
                system = "Add." if self.config.system else None
                data = SumsData(prompt=f"{a}+{b}=", answer=str(a + b), system_prompt=system)
                yield SumsTask(data, self.config.task)
"""


BOXED = PACKAGE.replace(
    "short(self, task: SumsData, trace: vf.Trace)", "short(self, runtime, trace: vf.Trace)"
)


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    folder = tmp_path_factory.mktemp("packages")
    for name, text in (("tiny_sums", PACKAGE), ("boxed_sums", BOXED)):
        (folder / name).mkdir()
        (folder / name / "__init__.py").write_text(text)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(folder))
        yield


@pytest.fixture(scope="module")
def sums(packages: None) -> Iterator[Verifier]:
    made = Verifier("tiny-sums", 3, {"largest": 7, "held_out": 0.1}, 5.0)
    made.check()
    yield made
    made.close()


@there
@pytest.mark.timeout(300)
def test_every_task_is_drawn_once_an_epoch_and_none_of_the_held_out(sums: Verifier) -> None:
    held = sums.held_out(100)
    epochs = [[sums.task(44 * epoch + i).prompt for i in range(44)] for epoch in range(2)]
    assert len(held) == 5 and [task.index for task in held] == [-1, -2, -3, -4, -5]
    assert len(set(epochs[0])) == 44 and sorted(epochs[0]) == sorted(epochs[1]) and epochs[0] != epochs[1]
    assert not {task.prompt for task in held} & set(epochs[0])


@there
@pytest.mark.timeout(300)
def test_rewards_are_the_tasks_own_with_their_weights(sums: Verifier) -> None:
    for task in (sums.task(0), sums.held_out(1)[0]):
        assert task.prompt == f"{task.prompt[0]}+{task.prompt[2]}=" and task.messages == ()
        assert sums.rewards(task, [task.answer, "no", "12345"]) == [2.5, 0.5, 0.0]


@there
@pytest.mark.timeout(300)
def test_a_task_that_hangs_costs_a_group_and_the_next_is_scored(sums: Verifier) -> None:
    task = sums.task(1)
    with pytest.raises(RewardError, match="verifiers:tiny-sums did not answer within 5 s"):
        sums.rewards(task, ["hang"])
    assert sums.rewards(task, [task.answer]) == [2.5]


@there
@pytest.mark.timeout(300)
def test_a_system_prompt_makes_a_conversation(packages: None) -> None:
    source = tasks.source(config.TaskSettings(name="verifiers:tiny-sums", options={"system": True}), 1)
    task = source.task(0)
    assert [(turn.role, turn.content) for turn in task.messages] == [
        ("system", "Add."),
        ("user", task.prompt),
    ]
    assert source.rewards(task, [task.answer]) == [2.5]
    source.close()


@there
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("name", "options", "says"),
    [
        ("tiny-summs", {}, "taskset 'tiny-summs' not found"),
        ("tiny-sums", {"bigest": 3}, "option bigest: Extra inputs are not permitted"),
        ("tiny-sums", {"largest": 1}, "has 1 tasks, which is too few"),
        ("boxed-sums", {}, "its reward short needs a runtime"),
    ],
)
def test_what_cannot_be_used_is_refused_at_the_start(
    packages: None, name: str, options: dict[str, Any], says: str
) -> None:
    with pytest.raises(TaskError, match=says):
        tasks.source(config.TaskSettings(name=f"verifiers:{name}", options=options), 1)
