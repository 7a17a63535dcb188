"""A deadline for each step of a served stream, with one timer per stream.

A stream's deadline changes four times a message, and a new timer for each would cost more than handling the
message. So the one timer stays set while the deadline moves later; when it fires early, it is set again.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable


class StepDeadline:
    """The deadline of the current step of one stream; times are of the running loop."""

    def __init__(self, over: Callable[[], None]) -> None:
        """`over` is called when a step outlasts its deadline."""
        self._loop, self._over = asyncio.get_running_loop(), over
        self._until = math.inf
        self._timer: asyncio.TimerHandle | None = None

    def begin(self, seconds: float) -> None:
        """Begin a step that may take `seconds`; infinite: no deadline."""
        self._until = self._loop.time() + seconds
        if self._timer is None or self._until < self._timer.when():
            self._set()

    def end(self) -> None:
        """Cancel the deadline: the stream has ended."""
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
