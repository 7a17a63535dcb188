"""Wraps a task source: prompts are rendered through the tokenizer's chat template, where the run has one.

Roles and engines get strings only. Rewards get the task as the source made it: reward functions never see a
template. A single conversation that the template cannot write (roles in an order that it does not know)
is given as its plain turns, the same on every peer; a template that cannot write the first task is an
error at the start.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from swarm.tasks.base import Say, TaskSource
from swarm.types import Message, Task

Render = Callable[[Sequence[Task]], list[str]]


class Rendered:
    """A task source with rendered prompts. `render` raises ValueError where it cannot write one of the tasks,
    and RewardError where it did not get to write it: the next one may be written."""

    def __init__(
        self,
        source: TaskSource,
        render: Render,
        say: Say = lambda line: None,
        slow: bool = False,
        system: str = "",
    ) -> None:
        """Raises ValueError when not even the first task can be rendered; `say` gets a line about the first
        later task that cannot. `slow`: `render` asks another process. `system`: a message before every prompt
        in place of the run's."""
        self.environment = source.environment
        self.slow, self.slow_tasks = source.slow, source.slow_tasks or slow
        self._source, self._render, self._say, self._system = source, render, say, system
        self._warned = False
        self._plain: dict[int, Task] = {}
        """Held-out tasks by their index: a source has them in a row only."""
        self._texts([source.task(0)])

    def task(self, index: int) -> Task:
        return self.tasks([index])[0]

    def tasks(self, indices: Sequence[int]) -> list[Task]:
        return self._rendered(self._source.tasks(indices))

    def held_out(self, n: int) -> list[Task]:
        tasks = self._source.held_out(n)
        self._plain.update((task.index, task) for task in tasks)
        return self._rendered(tasks)

    def rewards(self, task: Task, completions: Sequence[str]) -> list[float]:
        plain = self._source.task(task.index) if task.index >= 0 else self._plain[task.index]
        return self._source.rewards(plain, completions)

    def close(self) -> None:
        self._source.close()

    def _rendered(self, tasks: Sequence[Task]) -> list[Task]:
        try:
            texts = self._texts(tasks)
        except ValueError as error:
            if len(tasks) > 1:
                return [rendered for task in tasks for rendered in self._rendered([task])]
            texts = [self._plainly(tasks[0], str(error))]
        return [msgspec.structs.replace(task, prompt=text) for task, text in zip(tasks, texts, strict=True)]

    def _texts(self, tasks: Sequence[Task]) -> list[str]:
        return self._render([self._with_system(task) for task in tasks] if self._system else tasks)

    def _with_system(self, task: Task) -> Task:
        turns = task.messages or (Message(role="user", content=task.prompt),)
        if turns[0].role == "system":
            return task
        return msgspec.structs.replace(task, messages=(Message(role="system", content=self._system), *turns))

    def _plainly(self, task: Task, why: str) -> str:
        if not self._warned:
            self._warned = True
            self._say(
                f"task {task.index} and perhaps others are given to the model without its template: {why}"
            )
        return "\n\n".join(turn.content for turn in task.messages) or task.prompt
