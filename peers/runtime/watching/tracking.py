"""Sends a run's figures to an experiment tracker, from a thread of its own.

    events -> RunFigures -> queue of WAITING versions -> thread: open the tracker, write, close

A tracker that cannot be opened or that fails costs figures and nothing else: a fault gives the reason, and it
is tried again with the next ones. Not handled here: the choice of figures (run_figures), the trackers
(trackers).
"""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from peers.runtime.faults import FaultReport
from peers.runtime.kernel import Kernel
from peers.runtime.watching import trackers
from peers.runtime.watching.run_figures import Figures, RunFigures
from peers.runtime.watching.trackers import Experiment, Tracker
from swarm.events import Event
from swarm.protocol import Part
from swarm.settings.loading import run_dict
from swarm.settings.page import Track

WAITING = 1000
"""Versions whose figures wait for a slow tracker: an hour of them in a quick run."""

REOPENED = 60.0
"""Seconds before a tracker that could not be opened is tried again."""

ENDING = 20.0
"""Seconds that a tracker has to end: it keeps unsent figures and sends them later."""


class TrackedVersion(NamedTuple):
    version: int
    figures: Figures
    at: float
    """Unix seconds."""


@contextlib.asynccontextmanager
async def tracked(kernel: Kernel, settings: Track, folder: Path) -> AsyncIterator[None]:
    """Hand the figures of all events of this peer's bus to the tracker while the body runs; its files are in
    `folder`, where it keeps any."""
    if settings.to == trackers.NONE:
        yield
        return
    name = f"{kernel.config.run.name}-{kernel.who.run[:12]}"
    experiment = Experiment(settings.project, name, run_dict(kernel.config.run), folder / settings.to)
    figures, thread = RunFigures(), TrackerThread(settings.to, experiment, FaultReport(kernel, Part.TRACKER))

    def on_event(event: Event) -> None:
        for version, those in figures.take(event):
            thread.put(TrackedVersion(version, those, event.at))

    kernel.bus.add(on_event)
    thread.start()
    try:
        yield
    finally:
        for version, those in figures.rest():
            thread.put(TrackedVersion(version, those, kernel.now()))
        await thread.end()


class TrackerThread:
    """The thread that a tracker lives in: it may wait for a network, and its import takes seconds. Made in
    the event loop, which it reports to."""

    def __init__(self, to: str, experiment: Experiment, fault: FaultReport) -> None:
        self._to, self._open, self._experiment = to, trackers.TRACKERS[to], experiment
        self._loop, self._fault = asyncio.get_running_loop(), fault
        self._lines: queue.SimpleQueue[TrackedVersion | None] = queue.SimpleQueue()
        self._tracker: Tracker | None = None
        self._tried = -REOPENED
        self._ended = asyncio.Event()
        # a daemon: the process does not wait for one that hangs
        self._thread = threading.Thread(target=self._run, name=f"tracker {to}", daemon=True)
        self.start = self._thread.start

    def put(self, line: TrackedVersion) -> None:
        if self._lines.qsize() < WAITING:
            self._lines.put(line)
        else:
            self._fault.failed(f"{self._to} is {WAITING} versions behind: version {line.version} is not kept")

    async def end(self) -> None:
        """Return when all is written and the tracker is closed, or after ENDING."""
        self._lines.put(None)
        try:
            async with asyncio.timeout(ENDING):
                await self._ended.wait()
        except TimeoutError:
            self._fault.failed(f"{self._to} did not end within {ENDING:.0f} s: what it sends may be cut off")

    def _run(self) -> None:
        while (line := self._lines.get()) is not None:
            self._write(line)
        if self._tracker is not None:
            with self._reporting("did not end"):
                self._tracker.close()
        self._call_in_loop(self._ended.set)

    def _write(self, line: TrackedVersion) -> None:
        if self._tracker is None and time.monotonic() - self._tried >= REOPENED:
            self._tried = time.monotonic()
            with self._reporting("cannot be opened"):
                self._tracker = self._open(self._experiment)
        if self._tracker is not None:
            with self._reporting(f"did not take version {line.version}"):
                self._tracker.write(*line)
                self._call_in_loop(self._fault.recovered)

    @contextlib.contextmanager
    def _reporting(self, what: str) -> Iterator[None]:
        """A tracker is third-party software with a network behind it: any exception of it is reported as its
        fault."""
        try:
            yield
        except Exception as error:
            self._call_in_loop(self._fault.failed, f"{self._to} {what}: {type(error).__name__}: {error}")

    def _call_in_loop(self, what: Callable[..., None], *said: str) -> None:
        with contextlib.suppress(RuntimeError):  # the loop has ended before a tracker that hung
            self._loop.call_soon_threadsafe(what, *said)
