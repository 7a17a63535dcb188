"""A sampler's tasks: those of its next call are made while the engine runs the one before.

    of(draws)        the tasks of a call, at once where they were made ahead
    ask(weights)     those of as many draws that follow under a release, beside the engine's call

One of the two at a time. Tasks that were made ahead and are not used, since a newer release has other draws,
are dropped with the next `ask`. Tasks that cannot be made ahead are requested again when they are needed. A
quick source is not asked ahead. Not handled here: how tasks are made (peers.intake.reward_calls).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence

from peers.intake.reward_calls import RewardCalls
from swarm.core.intake.curriculum import Curriculum, Draw
from swarm.tasks.base import RewardError
from swarm.types import Digest, Task


class NextTasks:
    def __init__(self, calls: RewardCalls, curriculum: Curriculum, given: asyncio.Event) -> None:
        """`given`: set unless the engine waits for its next call."""
        self._calls, self._curriculum, self._given = calls, curriculum, given
        self._made: dict[int, Task] = {}
        self._count = 0
        """Draws of the last call."""
        self._asking: set[asyncio.Task[None]] = set()
        self._turn = asyncio.Lock()

    async def of(self, draws: Sequence[Draw]) -> list[Task]:
        """The task of each draw of a call. Raises RewardError."""
        self._count = len(draws)
        return await self.more(draws)

    async def more(self, draws: Sequence[Draw]) -> list[Task]:
        """The task of each further draw of the same call, in the place of others. Raises RewardError."""
        async with self._turn:
            await self._make(draws)
            tasks = [self._made[draw.task] for draw in draws]
            for index in {draw.task for draw in draws}:
                del self._made[index]
            return tasks

    def ask(self, weights: Digest, beside: asyncio.TaskGroup) -> None:
        """Have those made that come next under the release with these weights, and no others."""
        if self._calls.source.slow_tasks:
            asking = beside.create_task(self._ask(weights))
            self._asking.add(asking)
            asking.add_done_callback(self._asking.discard)

    def cancel(self) -> None:
        """No next call comes: a source may take long, and its result is not needed."""
        for asking in self._asking:
            asking.cancel()

    async def _ask(self, weights: Digest) -> None:
        await self._given.wait()
        draws = self._curriculum.following(weights, self._count)
        async with self._turn:
            self._made = {draw.task: self._made[draw.task] for draw in draws if draw.task in self._made}
            with contextlib.suppress(RewardError):  # it was reported; `of` asks again
                await self._make(draws)

    async def _make(self, draws: Sequence[Draw]) -> None:
        if missing := [draw.task for draw in draws if draw.task not in self._made]:
            self._made |= zip(missing, await self._calls.tasks(missing), strict=True)
