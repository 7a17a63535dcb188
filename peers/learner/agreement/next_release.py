"""Fetches the release that a learner takes next, beside the round.

    run    a release that ranks above this learner's -> Host.obtain -> its bytes, ready
           while the round waits for it, or has nothing to do
    wait   the round, until they are ready or not worth waiting for

A learner waits for an announced release as long as swarm.core.agreement.releases says, then continues from
its own version; `better` is true when the bytes arrive later. Not handled here: loading them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from peers.runtime.host import Host
from swarm.core.agreement.releases import rank
from swarm.storage.weights import Weights
from swarm.types import Release


class NextRelease:
    def __init__(self, host: Host, above: Callable[[], tuple[Any, ...]], idle: Callable[[], bool]) -> None:
        """`above()` is the rank that a release must exceed, `idle()` whether the round has nothing to do."""
        self._host, self._above, self._idle = host, above, idle
        self._ready: tuple[Release, Weights] | None = None
        self._waited = False

    def better(self, above: tuple[Any, ...]) -> bool:
        """A release that ranks above is here, or is worth waiting for."""
        ready = self._ready is not None and rank(self._ready[0]) > above
        return ready or self.awaited(above) is not None

    def awaited(self, above: tuple[Any, ...]) -> Release | None:
        """The release that ranks above and is worth waiting for, if there is one."""
        return self._host.releases.awaited(above)

    async def run(self) -> None:
        """Fetch, until cancelled: the release that the round waits for, or any better one while the round has
        nothing to do."""
        host = self._host
        while True:
            above, pause = self._above(), host.config.run.pace.beat
            if self._ready is not None and rank(self._ready[0]) <= above:
                self._ready = None  # the learner has a better one by now
            if self._ready is None and (self._waited or (self._idle() and self.awaited(above) is None)):
                if (found := await host.releases.obtain(above)) is not None:
                    self._ready = found
                    host.move()
                pause = min(pause, host.releases.retry_after(above))
            await host.changed(pause)

    async def wait(self) -> tuple[Release, Weights] | None:
        """Wait for a better release and its bytes. None when none is worth waiting for any more, or when the
        learner is asked to stop. Meanwhile its own version may have become the best one."""
        host, self._waited = self._host, True
        host.move()
        while not host.stop.is_set() and self._ready is None and self.awaited(self._above()) is not None:
            await host.changed(host.config.run.pace.beat)
        ready, self._waited, self._ready = self._ready, False, None
        return ready if ready is not None and rank(ready[0]) > self._above() else None
