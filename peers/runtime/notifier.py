"""Wakes tasks that wait for news of a host, or until a time has passed.

A peer waits thousands of times an hour, and nearly always news come first; so all waits share one timer of
the loop, which is set for the earliest and looks again when it is early. Not handled: the content of the
news.
"""

from __future__ import annotations

import asyncio
import math


class Notifier:
    def __init__(self) -> None:
        self._waiting: dict[asyncio.Future[None], float] = {}
        """Wait -> when it ends, in loop seconds; in the order in which they began."""
        self._timer: asyncio.TimerHandle | None = None

    def wake(self) -> None:
        """End all waits."""
        waiting, self._waiting = self._waiting, {}
        for wait in waiting:
            _end(wait)

    async def wait(self, timeout: float = math.inf) -> None:
        """Wait for `wake`, at most `timeout` seconds."""
        loop = asyncio.get_running_loop()
        wait, until = loop.create_future(), loop.time() + timeout
        self._waiting[wait] = until
        self._set(until, loop)
        try:
            await wait
        finally:
            self._waiting.pop(wait, None)

    def _set(self, until: float, loop: asyncio.AbstractEventLoop) -> None:
        if until == math.inf:
            return
        if self._timer is not None:
            if self._timer.when() <= until:
                return
            self._timer.cancel()
        self._timer = loop.call_at(until, self._look)

    def _look(self) -> None:
        loop, self._timer = asyncio.get_running_loop(), None
        now = loop.time()
        for wait, until in list(self._waiting.items()):
            if until <= now:
                del self._waiting[wait]
                _end(wait)
        if self._waiting:
            self._set(min(self._waiting.values()), loop)


def _end(wait: asyncio.Future[None]) -> None:
    if not wait.done():  # else its task was cancelled, and has not run since
        wait.set_result(None)
