"""Calls of a task source: tasks and rewards, slow ones off the loop, with fault events.

A task and the texts of one group come in, its rewards go out, or RewardError: the group is lost and the role
continues. The first failure is a Faulted event (part `rewards`), the first success after it a Recovered
event. A quick source is called in the event loop itself, so that a simulation's journal does not depend on
thread scheduling.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from peers.runtime.faults import FaultReport
from peers.runtime.host import Host
from swarm.protocol import Kind, Part
from swarm.tasks.base import RewardError, TaskError, TaskSource
from swarm.types import Task

T = TypeVar("T")


class RewardCalls:
    def __init__(self, host: Host, source: TaskSource) -> None:
        self.host, self.source = host, source
        self._fault = FaultReport(host, Part.REWARDS)

    async def tasks(self, indices: Sequence[int]) -> list[Task]:
        """Training tasks to sample. Raises RewardError when a source that makes them in another process
        fails."""
        return await self._made(Kind.DRAW, self.source.tasks, indices)

    async def task_and_rewards(self, index: int, texts: Sequence[str]) -> tuple[Task, tuple[float, ...]]:
        """A training task by its index, and the rewards of another peer's completions. Raises RewardError.

        One call of kind SCORE, which does not wait until a learner has finished a computation.
        """
        made = await self._made(Kind.SCORE, self._regenerated, index, texts)
        self._fault.recovered()
        return made

    async def of_others(self, index: int, texts: Sequence[str]) -> tuple[Task, tuple[float, ...]]:
        """The same for a group that another learner selected: a failure is no fault of this peer."""
        return await self._called(Kind.SCORE, self._regenerated, index, texts)

    async def drawn(self, draw: Callable[[TaskSource], list[Task]]) -> list[Task]:
        """Tasks to evaluate on. Raises RewardError as `tasks` does."""
        return await self._made(Kind.DRAW, draw, self.source)

    async def rewards(self, task: Task, texts: Sequence[str]) -> tuple[float, ...]:
        """One reward for each text. Raises RewardError."""
        rewards = await self._made(Kind.SCORE, self.source.rewards, task, texts)
        self._fault.recovered()
        return tuple(rewards)

    def _regenerated(self, index: int, texts: Sequence[str]) -> tuple[Task, tuple[float, ...]]:
        task = self.source.task(index)
        return task, tuple(self.source.rewards(task, texts))

    async def _made(self, kind: Kind, function: Callable[..., T], *args: Any) -> T:
        try:
            return await self._called(kind, function, *args)
        except RewardError as error:
            self._fault.failed(str(error))
            raise

    async def _called(self, kind: Kind, function: Callable[..., T], *args: Any) -> T:
        try:
            slow = self.source.slow_tasks if kind is Kind.DRAW else self.source.slow
            return await self.host.ports.work.run(kind, function, *args) if slow else function(*args)
        except TaskError as error:
            raise RewardError(str(error)) from error
