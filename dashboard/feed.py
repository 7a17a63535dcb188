"""From a bus to many readers: folds events and gives each reader what it has not seen.

A Feed is a sink of a Bus. A reader is nothing but a revision number: at most four times a second it gets all that changed since
then, as one update. So there is no queue that could grow: a slow reader gets fewer and larger updates, and a full view when the
difference can no longer be told. Everything runs in one event loop. Not handled here: transport (dashboard.app).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable

import msgspec

from dashboard.state import State, fold
from swarm.events import Event

PAUSE = 0.25
# Seconds between two updates of one reader: as fast as a person reads changing figures.
PULSE = 2.0
# Seconds after which a reader without news hears how long it has been quiet; the page worries after 10.
READERS = 64
# Open streams: a browser may hold one per tab; beyond them the page says so instead of the peer running out of memory.


class Feed:
    def __init__(self, state: State, clock: Callable[[], float] = time.time) -> None:
        self.state = state
        self.clock = clock
        self.readers = 0
        self._heard = clock()
        self._closed = False

    def __call__(self, event: Event) -> None:
        fold(self.state, event)
        self._heard = self.clock()

    @property
    def full(self) -> bool:
        return self.readers >= READERS

    def view(self, since: int = 0) -> dict[str, object]:
        """`State.view`, with the seconds since the last event came in (`quiet`)."""
        now = self.clock()
        return self.state.view(now, since) | {"quiet": max(now - self._heard, 0.0)}

    async def updates(self) -> AsyncIterator[str]:
        """JSON views, the first one full, until `close` is called."""
        loop = asyncio.get_running_loop()
        seen, told = -1, loop.time()
        while not self._closed:
            if self.state.revision != seen or loop.time() - told >= PULSE:
                view = self.view(max(seen, 0))
                seen, told = self.state.revision, loop.time()
                yield msgspec.json.encode(view).decode()
            await asyncio.sleep(PAUSE)

    def open(self) -> None:
        """Allow streams (again): a page that broke is served anew from the same feed."""
        self._closed = False

    def close(self) -> None:
        """End all streams within a quarter of a second."""
        self._closed = True

    def statistics(self) -> dict[str, int]:
        return {"readers": self.readers, "revision": self.state.revision, "peers": len(self.state.peers)}
