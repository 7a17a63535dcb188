"""The evaluator: greedy accuracy on held-out tasks, for version 0 and then every `evaluation.every` versions.

It always takes the newest release that it can fetch, so a slow evaluator skips versions instead of falling
behind. The tasks are the same each time, and no two of them have one prompt: where the source has fewer than
`evaluation.tasks`, a note of the first evaluation says how many. Answers whose rewards cannot be computed are
left out of the accuracy, with an event; a version without any reward has no accuracy.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

from peers.intake.reward_calls import RewardCalls
from peers.runtime.host import Host
from peers.sampler.engine_calls import EngineCalls
from swarm import events
from swarm.protocol import Kind, Phase, WorkStage
from swarm.sample.base import Engine, EngineError
from swarm.storage.blocks import Damaged
from swarm.tasks.base import RewardError, TaskSource, too_few
from swarm.types import Task

GIVE_UP = 8
"""Failures in a row after which the other answers are not scored: each failure may take the whole of
`run.task.timeout`."""


class Evaluator:
    def __init__(self, host: Host, engine: Engine, source: TaskSource) -> None:
        self.host, self.engine, self.source = host, engine, source
        self.reward_calls = RewardCalls(host, source)
        self.engine_calls = EngineCalls(host)
        self._last: int | None = None
        self._tasks: list[Task] | None = None
        """Those of every evaluation; None before the first one."""

    async def run(self) -> None:
        """Evaluate releases until the host is asked to stop, then the last one, so that the run's final
        accuracy is known. A paused evaluator leaves at once."""
        while not self.host.stop.is_set():
            try:
                if await self.host.pause_gate.waited():
                    continue
                if not await self._turn(self.host.config.run.evaluation.every):
                    self.host.status.phase = Phase.NO_RELEASE
                    await self.host.changed(self.host.config.run.pace.beat)
            except EngineError:
                await self.engine_calls.wait()
        with contextlib.suppress(EngineError):  # an event reports it; there is no time to wait for the engine
            if self.host.pause_gate.reason is None:
                await self._turn(1)

    async def _turn(self, every: int) -> bool:
        """Fetch, load and evaluate a release at least `every` versions after the last one. False when there
        is none."""
        host = self.host
        if (found := await host.releases.obtain(() if self._last is None else (self._last + every,))) is None:
            return False
        host.status.phase = Phase.EVALUATING
        newest, weights = found
        fetched = host.now()
        with host.status.computing(host.now):
            try:
                await self.engine_calls.load(self.engine, weights)
            except Damaged:
                return True
            except ValueError as error:
                self._note("error", f"release {newest.version} cannot be evaluated: {error}")
                host.releases.refuse(newest)
                return True
            self.engine_calls.adopted(newest, fetched, fetched)
            try:
                tasks = await self._held_out()
            except RewardError as error:
                self._note("warning", f"version {newest.version} has no accuracy: {error}")
                self._last = newest.version
                return True
            prompts = [task.prompt for task in tasks]
            with (
                self.engine_calls.silence.watched(self.engine),
                self.engine_calls.within(WorkStage.EVALUATION, self.engine, len(prompts)),
            ):
                answers = (
                    await self.engine_calls.run(Kind.EVALUATE, self.engine.greedy, prompts) if prompts else []
                )
        self._last = newest.version
        rewards = await self._score(tasks, answers, newest.version)
        host.status.version, host.status.weights = newest.version, newest.weights
        host.status.finished(1, 0, host.now())
        if rewards:
            accuracy = sum(reward >= host.config.run.evaluation.right for reward in rewards) / len(rewards)
            host.status.accuracy_before, host.status.accuracy = host.status.accuracy, accuracy
            host.status.judged = len(rewards)
            host.emit(events.Evaluated, version=newest.version, accuracy=accuracy, tasks=len(rewards))
        return True

    async def _held_out(self) -> list[Task]:
        """Raises RewardError."""
        if self._tasks is None:
            n = self.host.config.run.evaluation.tasks
            self._tasks = await self.reward_calls.held_out(n)
            if few := too_few(len(self._tasks), n):
                self._note("warning", few)
        return self._tasks

    async def _score(self, tasks: Sequence[Task], answers: Sequence[str], version: int) -> list[float]:
        """Rewards of the answers that can be scored; a note gives the number of the others."""
        rewards: list[float] = []
        why, in_a_row = "", 0
        for task, text in zip(tasks, answers, strict=True):
            try:
                rewards += await self.reward_calls.rewards(task, [text])
                in_a_row = 0
            except RewardError as error:
                why, in_a_row = str(error), in_a_row + 1
                if in_a_row == GIVE_UP:
                    break
        if not tasks:
            why = "the task has no held-out exercises (run.task.options.held_out)"
            self._note("info", f"version {version} has no accuracy: {why}")
        elif len(rewards) < len(tasks):
            what = "has no accuracy" if not rewards else "is judged without them"
            lost = f"{len(tasks) - len(rewards)} of {len(tasks)} held-out answers could not be scored"
            self._note("warning", f"version {version} {what}: {lost}: {why}")
        return rewards

    def _note(self, level: str, text: str) -> None:
        self.host.emit(events.Noted, level=level, text=text)
