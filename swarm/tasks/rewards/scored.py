"""Task source whose completions are scored by the reward functions of `run.task.rewards`, called as TRL does.

    task, texts -> prompts, completions, columns: lists of one value per completion
        -> swarm.tasks.rewards.rewards -> weighted sums

A function gets the prompt as the data has it (text, or a list of messages; never the chat template's output),
completions of the same kind, and every column of the row. Sources without rows give one column, `answer`. Not
handled here: the functions' process, its sandbox and its deadline (swarm.tasks.workers.worker).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from swarm.settings import config
from swarm.tasks.base import CodePolicy, OneByOne, TaskError, UnscoredSource, checked
from swarm.tasks.data.dataset import ANSWERS, DataSet
from swarm.tasks.rewards import rewards
from swarm.tasks.workers.sandbox import NoSandbox
from swarm.types import Task

OURS = ("prompt", "completion", "completion_ids")
"""Columns that TRL does not pass on: it has arguments of its own for them."""

COMPARES = ("exact", "math")
"""Rewards that need an answer to compare with."""


def make(
    source: UnscoredSource,
    names: Sequence[str],
    settings: config.TaskSettings,
    folder: Path | None,
    code: CodePolicy,
) -> ScoredSource:
    """`source` with these rewards; every function is imported here and now. Raises TaskError and
    NoSandbox."""
    try:
        return ScoredSource(source, _scorer(source, names, settings, folder, code))
    except (TaskError, NoSandbox):
        source.close()
        raise


def _scorer(
    source: UnscoredSource,
    names: Sequence[str],
    settings: config.TaskSettings,
    folder: Path | None,
    code: CodePolicy,
) -> rewards.RunRewards:
    comparing = [name for name in names if name in COMPARES]
    if comparing and isinstance(source, DataSet) and not source.answers:
        raise TaskError(
            f"the reward {comparing[0]} compares with an answer, and {source.environment} has none of the"
            f" columns {', '.join(ANSWERS)}: set run.task.options.answer to its column, or run.task.rewards"
            " to another reward"
        )
    try:
        return checked(rewards.RunRewards(names, settings.weights, folder, code, settings.timeout))
    except NoSandbox:
        raise
    except ValueError as error:
        raise TaskError(str(error)) from error


class ScoredSource(OneByOne):
    """A source with the rewards of a run; see the module."""

    slow = slow_tasks = True

    def __init__(self, source: UnscoredSource, scorer: rewards.RunRewards) -> None:
        self.environment = source.environment
        self._source, self._scorer = source, scorer

    def task(self, index: int) -> Task:
        return self._source.task(index)

    def held_out(self, n: int) -> list[Task]:
        return self._source.held_out(n)

    def rewards(self, task: Task, completions: Sequence[str]) -> list[float]:
        count = len(completions)
        prompt: Any = task.prompt
        texts: list[Any] = list(completions)
        if task.messages:
            prompt = [{"role": turn.role, "content": turn.content} for turn in task.messages]
            texts = [[{"role": "assistant", "content": text}] for text in completions]
        columns = {name: [value] * count for name, value in self._columns(task).items() if name not in OURS}
        return self._scorer.rewards([prompt] * count, texts, columns)

    def close(self) -> None:
        self._scorer.close()
        self._source.close()

    def _columns(self, task: Task) -> Mapping[str, Any]:
        return self._source.columns(task) if isinstance(self._source, DataSet) else {"answer": task.answer}
