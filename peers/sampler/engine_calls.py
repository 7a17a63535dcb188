"""Engine calls with fault events and exponential backoff, 1 to 30 s.

    call -> Work port -> result
                      -> EngineError -> Faulted, raised -> the role waits 1, 2, 4 ... 30 s -> its next turn
                         the first call of its kind that works after it -> Recovered

    engine that samples --signs of life--> none for long: Faulted, and the status line

The peer keeps trying however often a call fails, since missing memory or a missing server may come back; a
Faulted event repeats each minute until it does. Not handled here: restarts, which are the engine's own.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any, TypeVar

from peers.runtime.faults import FaultReport
from peers.runtime.host import Host
from peers.runtime.watching.long_work import StageCounts
from swarm import events
from swarm.protocol import Kind, Part, Phase, WorkStage
from swarm.sample.base import Completions, Engine, EngineError, NoRoom
from swarm.storage.blocks import Damaged
from swarm.storage.weights import Weights
from swarm.types import Release

T = TypeVar("T")

WAIT, LONGEST = 1.0, 30.0
"""Seconds before the next try, doubled each time: a process restarts in seconds, a server when a person
starts it."""

LOOK = 5.0
"""Seconds between two looks whether an engine that samples gives signs of life."""

SILENT = 45.0
"""Seconds without a sign of life after which silence is reported: many times the usual two seconds, and more
than the first step of most models."""

DOOMED = "doomed"
"""Why tokens are wasted: their call was stopped."""


class Silence:
    """Reports while an engine gives no sign of life: its process was stopped, or gets no processor or memory.
    An engine whose `statistics` have no `signs` is not watched."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._longest = 0.0
        """Seconds without a sign within the last call that came to its end: a step may take so long here."""
        self._fault: FaultReport | None = None

    @contextlib.contextmanager
    def watched(self, engine: Engine) -> Iterator[None]:
        """The engine computes while the body runs."""
        if "signs" not in engine.statistics():
            yield
            return
        longest = [0.0]
        watching = asyncio.create_task(self._watch(engine, longest))
        try:
            yield
            self._longest = max(longest)
            self._over()
        except EngineError:  # a fault of its own
            self._fault, self._host.status.silence = None, 0.0
            raise
        finally:
            watching.cancel()
            if watching.done() and not watching.cancelled():
                watching.result()

    async def _watch(self, engine: Engine, longest: list[float]) -> None:
        seen, silent = engine.statistics()["signs"], 0.0
        while True:
            await self._host.ports.clock.sleep(LOOK)
            if (signs := engine.statistics()["signs"]) != seen:
                seen, silent = signs, 0.0
                self._over()
                continue
            silent += LOOK  # not by a clock: while this process stands still it receives no signs
            longest.append(silent)
            if silent >= max(SILENT, 2 * self._longest):
                self._report(silent)

    def _report(self, silent: float) -> None:
        host = self._host
        self._fault, host.status.silence = self._fault or FaultReport(host, Part.ENGINE), silent
        self._fault.failed(
            f"it stands still: its process has given no sign of life for {silent:.0f} s (it was stopped, or"
            f" gets no processor or memory); after {host.config.peer.engine.timeout:g} s of that"
            " (peer.engine.timeout) it is started again"
        )

    def _over(self) -> None:
        if self._fault is not None:
            self._fault.recovered()
        self._fault, self._host.status.silence = None, 0.0


class EngineCalls:
    def __init__(self, host: Host) -> None:
        self.host = host
        self.silence = Silence(host)
        self._wait = WAIT
        self._fault = FaultReport(host, Part.ENGINE)
        self._kind: Kind | None = None
        """Kind of the call that failed last. A successful load does not prove that sampling works again."""
        self._call: asyncio.Task[list[Completions]] | None = None
        """The current sampling call."""
        self.given = asyncio.Event()
        """The engine has its next call, or gets none now."""
        self.given.set()
        self._began, self._pace, self._most = 0.0, 0.0, 0
        """When that call began, tokens a second of the one before, and its most tokens."""

    async def run(self, kind: Kind, function: Callable[..., T], *args: Any) -> T:
        """Call `function(*args)` on the Work port. Raises NoRoom, and EngineError after a Faulted
        event."""
        try:
            result = await self.host.ports.work.run(kind, function, *args)
        except NoRoom:
            raise
        except EngineError as error:
            self._kind = kind
            self._fault.failed(str(error))
            raise
        if self._kind == kind:
            self._fault.recovered()
            self._kind, self._wait = None, WAIT
        return result

    def sample(
        self, engine: Engine, prompts: Sequence[str], seeds: Sequence[int]
    ) -> Awaitable[list[Completions] | None]:
        """Begin a call that results in one group per prompt; None when it was stopped. Awaiting it raises
        EngineError."""
        sampling = self.host.config.run.sampling
        self._most = len(prompts) * sampling.group_size * sampling.max_tokens
        call = self.run(Kind.SAMPLE, engine.sample, prompts, sampling.group_size, seeds)
        self._call, self._began = asyncio.ensure_future(call), self.host.now()
        return self._sampled(engine, self._call)

    def within(self, stage: WorkStage, engine: Engine, completions: int) -> AbstractContextManager[None]:
        """The body is a call of so many completions, whose progress is reported."""
        status = self.host.status

        def counted() -> StageCounts:
            return StageCounts(int(engine.statistics().get("done", 0)), completions)

        return status.work.within(stage, self.host.now, counted)

    async def _sampled(
        self, engine: Engine, call: asyncio.Task[list[Completions]]
    ) -> list[Completions] | None:
        try:
            with self.silence.watched(engine):
                sampled = await call
        except asyncio.CancelledError:
            if (me := asyncio.current_task()) is not None and me.cancelling():
                raise
            return None
        finally:
            self._call = None
        if (seconds := self.host.now() - self._began) > 0:
            self._pace = sum(len(one.tokens) for one in sampled) / seconds
        return sampled

    @contextlib.contextmanager
    def first(self) -> Iterator[None]:
        """The call that the body prepares begins before what waits until one is `given`: the scoring of the
        last one's groups would hold up the engine."""
        self.given.clear()
        try:
            yield
        finally:
            asyncio.get_running_loop().call_soon(self.given.set)  # once the call, a task, has begun

    def stop(self, engine: Engine) -> None:
        """Stop the current call, if any: its result would be of no use."""
        if self._call is not None:
            self._call.cancel()
            engine.stop()
            seconds = self.host.now() - self._began
            self.host.status.wasted[DOOMED] += min(round(seconds * self._pace), self._most)

    async def load(self, engine: Engine, weights: Weights) -> None:
        """Load a release. Raises ValueError, EngineError, and Damaged where its file was: then it is not here
        any more, until it is fetched again."""
        try:
            await self.run(Kind.LOAD, engine.load, weights)
        except Damaged:
            await self.host.releases.lose(weights.digest)
            raise

    def adopted(self, release: Release, fetched: float, began: float) -> None:
        """Record that the engine has a release: it was here at `fetched`, and its load began at `began`."""
        now, released = self.host.now(), self.host.releases.released_here(release)
        self.host.emit(
            events.Adopted,
            version=release.version,
            weights=release.weights,
            fetch=round(fetched - released, 3),
            load=round(now - began, 3),
            age=round(now - released, 3),
        )

    async def wait(self) -> None:
        """Wait after a failure; ends early when the peer is asked to stop."""
        host, end = self.host, self.host.steady() + self._wait
        host.status.phase = Phase.NO_ENGINE
        self._wait = min(2 * self._wait, LONGEST)
        while not host.stop.is_set() and (left := end - host.steady()) > 0:
            await host.changed(left)
