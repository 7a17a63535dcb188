"""The evaluator: greedy accuracy on held-out tasks, for version 0 and then every `evaluation.every` versions.

It always takes the newest release, so that a slow evaluator skips versions instead of falling behind.
"""

from __future__ import annotations

from peers.host import Host
from swarm import events
from swarm.net.ports import NetError
from swarm.sample.base import Engine
from swarm.tasks.base import TaskSource


class Evaluator:
    def __init__(self, host: Host, engine: Engine, source: TaskSource) -> None:
        self.host, self.engine, self.source = host, engine, source
        self._last: int | None = None

    async def run(self) -> None:
        """Until the host is asked to stop; then once more for the last release, so that the run's final accuracy is known."""
        while not self.host.stop.is_set():
            if not await self._turn(self.host.config.run.evaluation.every):
                self.host.vitals.state = "waiting for a release"
                await self.host.changed(self.host.config.run.pace.beat)
        await self._turn(1)

    async def _turn(self, every: int) -> bool:
        newest = self.host.releases.newest
        if newest is None or (self._last is not None and newest.version < self._last + every):
            return False
        host, evaluation = self.host, self.host.config.run.evaluation
        host.vitals.state = "evaluating"
        try:
            weights = await host.fetch(newest)
        except NetError as error:
            host.emit(events.Noted, level="warning", text=f"release {newest.version} could not be fetched: {error}")
            await host.ports.clock.sleep(1.0)
            return not host.stop.is_set()
        fetched = host.now()
        with host.vitals.computing(host.now):
            await host.ports.work.run("load", self.engine.load, weights, newest.version, newest.weights)
            now = host.now()
            host.emit(
                events.Adopted, version=newest.version, weights=newest.weights, fetch=round(fetched - newest.released, 3),
                load=round(now - fetched, 3), age=round(now - newest.released, 3),
            )  # fmt: skip
            tasks = self.source.held_out(evaluation.tasks)
            answers = await host.ports.work.run("evaluate", self.engine.greedy, [task.prompt for task in tasks])
        right = sum(self.source.reward(task, text) >= 1.0 for task, text in zip(tasks, answers, strict=True))
        self._last = newest.version
        host.vitals.version, host.vitals.weights = newest.version, newest.weights
        host.vitals.finished(1, 0, host.now())
        host.emit(events.Evaluated, version=newest.version, accuracy=right / len(tasks), tasks=len(tasks))
        return True
