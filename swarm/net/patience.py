"""Patience: how long a stream that is served may take for what it does now.

What a stream does changes four times a message, and a timer for each would cost more than all that is decided
about the message. There is one timer a stream: it stays where it is while deadlines move away from it, and
looks again when it is early.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable


class Patience:
    def __init__(self, over: Callable[[], None]) -> None:
        """`over` is called when something takes longer."""
        self._loop, self._over = asyncio.get_running_loop(), over
        self._until = math.inf
        self._timer: asyncio.TimerHandle | None = None

    def wait(self, seconds: float) -> None:
        """What begins now may take so long; infinite: as long as it takes."""
        self._until = self._loop.time() + seconds
        if self._timer is None or self._until < self._timer.when():
            self._set()

    def end(self) -> None:
        """Nothing is waited for any more."""
        self._until = math.inf
        self._set()

    def _set(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_at(self._until, self._look) if self._until < math.inf else None

    def _look(self) -> None:
        if self._until <= self._loop.time():
            self._over()
        else:
            self._set()
