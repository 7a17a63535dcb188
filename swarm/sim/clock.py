"""Virtual time: an asyncio loop whose clock jumps to the next timer when nothing is ready.

In goes a coroutine, out comes its result, and a day passes in the seconds that its computing takes. The loop
has no sockets and no threads: nothing outside it can wake it, so a loop with neither a ready callback nor a
timer can never go on, and says so. Invariant: the order of callbacks is a function of the program alone. Not
handled: code that waits for a thread (`asyncio.to_thread`, `run_in_executor`), which looks like a deadlock
here; slow code goes through the Work port.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")

_NAMED = 8
"""Tasks that a deadlock names: enough to see the circle, few enough to read."""


class Deadlock(RuntimeError):
    """Every task waits and nothing can wake one."""


class VirtualLoop(asyncio.SelectorEventLoop):
    """Loop seconds start at 0 (asyncio compares timers with 1 ns, which unix seconds in a float cannot
    resolve)."""

    def __init__(self) -> None:
        self._elapsed = 0.0
        super().__init__(_Jump(self))

    def time(self) -> float:
        return self._elapsed

    def jump(self, seconds: float) -> None:
        self._elapsed += seconds


class _Jump(selectors.SelectSelector):
    """Instead of waiting for sockets it moves the clock: a system call per turn of the loop would be most of
    its cost."""

    def __init__(self, loop: VirtualLoop) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise Deadlock(_explain(self._loop))
        if timeout > 0:
            self._loop.jump(timeout)
        return []


def _explain(loop: VirtualLoop) -> str:
    waiting = sorted(task.get_name() for task in asyncio.all_tasks(loop))
    names = ", ".join(waiting[:_NAMED]) + (
        f" and {len(waiting) - _NAMED} more" if len(waiting) > _NAMED else ""
    )
    return (
        f"after {loop.time():.3f} virtual seconds no callback is ready and no timer is set, yet"
        f" {len(waiting)} tasks wait ({names}): they wait for each other, or for a thread, which a simulation"
        " cannot have (use the Work port)"
    )


def run(main: Coroutine[Any, Any, T]) -> T:
    """Run `main` to its end in virtual time. Raises Deadlock, or what `main` raises."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(main)
