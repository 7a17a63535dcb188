"""How a role gets its tasks and scores completions: quick sources at once, slow ones off the loop; what fails is told.

In come a task and the texts of one group, out come its rewards, or RewardError: the group is lost and the role goes on. The
first failure is a Faulted event (part `rewards`), the first success after it a Recovered one. A quick source is scored without
giving way to anybody, so that a simulation's journal does not depend on it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from peers.host import Host
from swarm import events
from swarm.tasks.base import RewardError, TaskError, TaskSource
from swarm.types import Task

T = TypeVar("T")
PART = "rewards"
AGAIN = 60.0
# Seconds after which a failure that goes on is told again, with its newest reason: windows that came later hear of it, too.


class Scorer:
    def __init__(self, host: Host, source: TaskSource) -> None:
        self.host, self.source = host, source
        self._failing: tuple[float, float] | None = None
        """Since when, and when it was last told."""

    async def tasks(self, indices: Sequence[int]) -> list[Task]:
        """Training tasks to sample. Raises RewardError when a source that makes them elsewhere cannot."""
        return await self._made("draw", lambda: [self.source.task(index) for index in indices])

    async def exercise(self, index: int, texts: Sequence[str]) -> tuple[Task, tuple[float, ...]]:
        """A training task that somebody else sampled, and what its completions are worth. Raises RewardError.

        One piece of work, of the kind that does not wait for what a learner computes.
        """
        task, rewards = await self._made("score", self._regenerated, index, texts)
        self._well()
        return task, tuple(rewards)

    async def held_out(self, n: int) -> list[Task]:
        """Raises RewardError as `tasks` does."""
        return await self._made("draw", self.source.held_out, n)

    async def rewards(self, task: Task, texts: Sequence[str]) -> tuple[float, ...]:
        """One for each text. Raises RewardError."""
        rewards = await self._made("score", self.source.rewards, task, texts)
        self._well()
        return tuple(rewards)

    def _regenerated(self, index: int, texts: Sequence[str]) -> tuple[Task, list[float]]:
        task = self.source.task(index)
        return task, self.source.rewards(task, texts)

    async def _made(self, kind: str, function: Callable[..., T], *args: Any) -> T:
        try:
            return await self.host.ports.work.run(kind, function, *args) if self.source.slow else function(*args)
        except (RewardError, TaskError) as error:
            self._failed(str(error))
            raise RewardError(str(error)) from error

    def _well(self) -> None:
        if self._failing is not None:
            self.host.emit(events.Recovered, part=PART, seconds=round(self.host.now() - self._failing[0], 2))
            self._failing = None

    def _failed(self, why: str) -> None:
        now = self.host.now()
        since, told = self._failing or (now, now - AGAIN)
        if now - told >= AGAIN:
            self._failing = (since, now)
            self.host.emit(events.Faulted, part=PART, detail=why)
