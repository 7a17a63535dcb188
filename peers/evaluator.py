"""The evaluator: greedy accuracy on held-out tasks, for version 0 and then every `evaluation.every` versions;
with `evaluation.samples` also that of completions sampled as the run samples, by seeds that follow from the
version and the task. With `evaluation.sets` it answers other tasks, too, in the same calls; what it finds of
them stands beside the accuracy and decides nothing.

It always takes the newest release that it can fetch, so a slow evaluator skips versions instead of falling
behind. The tasks are the same each time, and no two of them have one prompt: where the source has fewer than
`evaluation.tasks`, a note of the first evaluation says how many. Answers whose rewards cannot be computed are
left out of the accuracy, with an event; in the heartbeat's accuracy, which may end the run, they are wrong. A
version without any reward has no accuracy.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Mapping, Sequence
from functools import partial

from peers.intake.reward_calls import RewardCalls
from peers.runtime.host import Host
from peers.runtime.watching.long_work import StageCounts
from peers.sampler.engine_calls import EngineCalls
from swarm import events
from swarm.core import intervals
from swarm.core.intake.curriculum import INDEX_BITS
from swarm.protocol import Kind, Phase, WorkStage
from swarm.sample.base import Engine, EngineError, NoRoom
from swarm.storage.blocks import Damaged
from swarm.tasks import evaluation_sets
from swarm.tasks.base import RewardError, TaskSource, distinct, too_few
from swarm.types import Task

GIVE_UP = 8
"""Failures in a row after which the other answers are not scored: each failure may take the whole of
`run.task.timeout`."""


HELD_OUT = ""
"""Stands for the held-out tasks of `run.task` where evaluation sets have their names."""


class Evaluator:
    def __init__(
        self, host: Host, engine: Engine, source: TaskSource, sets: Mapping[str, TaskSource]
    ) -> None:
        """`sets`: the source of each evaluation set."""
        self.host, self.engine = host, engine
        self.reward_calls = {name: RewardCalls(host, its) for name, its in {HELD_OUT: source, **sets}.items()}
        self.engine_calls = EngineCalls(host)
        self._last: int | None = None
        self._tasks: dict[str, list[Task]] = {}
        """Those of every evaluation, by evaluation set, once they are drawn."""

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
            await self._draw(newest.version)
            if HELD_OUT not in self._tasks:
                self._last = newest.version
                return True
            tasks = [task for some in self._tasks.values() for task in some]
            with self.engine_calls.silence.watched(self.engine):
                answers = await self._greedy(tasks)
                samples = await self._sampled(tasks, newest.version)
        self._last = newest.version
        results = await self._results(answers, samples, newest.version)
        host.status.version, host.status.weights = newest.version, newest.weights
        host.status.finished(1, 0, host.now())
        if (held_out := results.pop(HELD_OUT, None)) is not None:
            # the run may end by this: an answer that cannot be scored is not right
            whole = len(self._tasks[HELD_OUT])
            host.status.accuracy_before = host.status.accuracy
            host.status.accuracy = held_out.accuracy * (held_out.tasks / whole)
            host.status.judged = whole
            host.emit(
                events.Evaluated,
                version=newest.version,
                accuracy=held_out.accuracy,
                tasks=held_out.tasks,
                sampled=held_out.sampled,
                sets=results,
            )
        return True

    async def _draw(self, version: int) -> None:
        """Draw the tasks that are not there yet; a note says which cannot be drawn."""
        run = self.host.config.run
        for name, calls in self.reward_calls.items():
            if name in self._tasks:
                continue
            if name == HELD_OUT:
                n, draw = run.evaluation.tasks, partial(distinct, n=run.evaluation.tasks)
            else:
                n, settings = evaluation_sets.number(run, name), evaluation_sets.completed(run, name)
                draw = partial(evaluation_sets.drawn, settings=settings, n=n)
            try:
                tasks = self._tasks[name] = await calls.drawn(draw)
            except RewardError as error:
                self._note("warning", f"version {version} has no accuracy{_on(name)}: {error}")
                continue
            if few := too_few(len(tasks), n, name):
                self._note("warning", few)
            elif not tasks:
                none = "the task has no held-out exercises (run.task.options.held_out)"
                why = f"evaluation set {name} has no tasks" if name else none
                self._note("info", f"there is no accuracy: {why}")

    async def _results(
        self, answers: Sequence[Sequence[str]], samples: Sequence[Sequence[str]], version: int
    ) -> dict[str, events.SetResult]:
        """Of each set of which some answers can be scored. `answers`, `samples`: of the tasks of all sets, in
        their order; `samples` may be empty."""
        found, start = dict[str, events.SetResult](), 0
        for name, tasks in self._tasks.items():
            own = slice(start, start := start + len(tasks))
            right = [one[0] for one in await self._right(name, answers[own], version)]
            sampled = [sum(one) for one in await self._right(name, samples[own], version)]
            if right:
                found[name] = events.SetResult(
                    accuracy=sum(right) / len(right),
                    tasks=len(right),
                    sampled=intervals.sampled(sampled, self.host.config.run.evaluation.samples),
                )
        return found

    async def _greedy(self, tasks: Sequence[Task]) -> list[Sequence[str]]:
        """One answer of each task. Raises EngineError."""
        if not tasks:
            return []
        prompts = [task.prompt for task in tasks]
        with self.engine_calls.within(WorkStage.EVALUATION, self.engine, len(prompts)):
            answers = await self.engine_calls.run(Kind.EVALUATE, self.engine.greedy, prompts)
        return [(text,) for text in answers]

    async def _sampled(self, tasks: Sequence[Task], version: int) -> list[Sequence[str]]:
        """The sampled completions of each task, nothing where none are asked for; empty ones of a prompt that
        the model has no room for with them. Raises EngineError."""
        found: list[Sequence[str]] = []
        if not self.host.config.run.evaluation.samples:
            return found

        def counted() -> StageCounts:
            return StageCounts(len(found), len(tasks))

        with self.host.status.work.within(WorkStage.EVALUATION, self.host.now, counted):
            await self._sample(tasks, version, found)
        return found

    async def _sample(self, tasks: Sequence[Task], version: int, found: list[Sequence[str]]) -> None:
        """Add them to `found`, some tasks at a time."""
        run, most = self.host.config.run, self.host.config.peer.engine.tasks
        at_once = most
        while len(found) < len(tasks):
            some = tasks[len(found) : len(found) + at_once]
            seeds = [_seed(run.seed, version, task.index) for task in some]
            prompts = [task.prompt for task in some]
            try:
                groups = await self.engine_calls.run(
                    Kind.EVALUATE, self.engine.sample, prompts, run.evaluation.samples, seeds
                )
                found += [group.texts for group in groups]
                at_once = most
            except NoRoom:  # for one of them: they go alone
                if len(some) == 1:
                    found.append(("",) * run.evaluation.samples)
                at_once = 1

    async def _right(self, name: str, answers: Sequence[Sequence[str]], version: int) -> list[list[bool]]:
        """Which answers are right, of the tasks of a set whose answers can be scored; a note gives the number
        of the others. `answers`: those of each task, or nothing."""
        tasks, calls = self._tasks[name], self.reward_calls[name]
        least, found = self.host.config.run.evaluation.right, list[list[bool]]()
        why, in_a_row = "", 0
        for task, texts in zip(tasks, answers, strict=bool(answers)):
            try:
                found.append([reward >= least for reward in await calls.rewards(task, texts)])
                in_a_row = 0
            except RewardError as error:
                why, in_a_row = str(error), in_a_row + 1
                if in_a_row == GIVE_UP:
                    break
        if len(found) < len(answers):
            what = ("has no accuracy" if not found else "is judged without them") + _on(name)
            lost = f"{len(tasks) - len(found)} of {len(tasks)} held-out answers could not be scored"
            self._note("warning", f"version {version} {what}: {lost}: {why}")
        return found

    def _note(self, level: str, text: str) -> None:
        self.host.emit(events.Noted, level=level, text=text)


def _on(name: str) -> str:
    return f" on evaluation set {name}" if name else ""


def _seed(run: int, version: int, task: int) -> int:
    """Of a task's samples: others for each version, the same at all evaluators."""
    named = hashlib.blake2b(f"evaluation/{run}/{version}/{task}".encode(), digest_size=INDEX_BITS // 8)
    return int.from_bytes(named.digest(), "big")
