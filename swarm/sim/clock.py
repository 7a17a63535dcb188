"""Virtual time: an asyncio loop whose clock jumps to the next timer when nothing is ready.

In goes a coroutine, out comes its result, and a day passes in the seconds that its computing takes. The loop
has no sockets and no threads: nothing outside it can wake it, so a loop with neither a ready callback nor a
timer can never continue, and says so. Invariants: the order of callbacks is a function of the program alone;
timers of one moment run in the order in which they were set. Calls to a thread are run at once, and take no
time: slow code goes through the Work port. Asyncio's debug mode has no effect.
"""

from __future__ import annotations

import asyncio
import contextvars
import gc
import heapq
from collections import deque
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any, TypeVar

T = TypeVar("T")

_NAMED = 8
"""Tasks that a deadlock names: enough to see the circle, few enough to read."""

SAME = 1e-9
"""Seconds between timers of one moment: waits are added up, and rounded."""

CANCELLED = 256
"""Timers that may be cancelled and kept; more, and more than half of all, are thrown out. Most timers are
those of answers that come in time."""

COLLECT = 100_000, 20, 50
"""Thresholds of the garbage collector. Thousands of peers are long-lived objects without end, and a third of
the time would go into looking through them."""


class Deadlock(RuntimeError):
    """Every task waits and nothing can wake one."""


def _nothing() -> None:
    """Replaces the function of a cancelled call."""


class _Call(asyncio.Handle):
    """A Handle that is cheaper to make: half of a simulation's time is spent on these. It has no context of
    its own: all callbacks of a virtual loop share one."""

    __slots__ = ()

    def __init__(self, loop: VirtualLoop, callback: Callable[..., object], args: Any) -> None:
        self._loop = loop
        self._callback, self._args = callback, args
        self._cancelled, self._repr, self._source_traceback = False, None, None

    def cancel(self) -> None:
        self._cancelled, self._callback, self._args = True, _nothing, ()


class _Timer(asyncio.TimerHandle):
    """A TimerHandle, likewise."""

    __slots__ = ()
    _loop: VirtualLoop
    _scheduled: bool
    """Whether it is in the heap."""

    def __init__(self, when: float, loop: VirtualLoop, callback: Callable[..., object], args: Any) -> None:
        self._loop = loop
        self._callback, self._args = callback, args
        self._cancelled, self._repr, self._source_traceback = False, None, None
        self._when, self._scheduled = when, True

    def cancel(self) -> None:
        if not self._cancelled:
            self._loop._cancelled += self._scheduled
        self._cancelled, self._callback, self._args = True, _nothing, ()


class VirtualLoop(asyncio.SelectorEventLoop):
    """Loop seconds start at 0 (asyncio compares timers with 1 ns, which unix seconds in a float cannot
    resolve)."""

    def __init__(self) -> None:
        self._elapsed = 0.0
        self.calls = 0
        """Callbacks that were run: a program's cost, alike on any machine."""
        super().__init__()
        self._ready: deque[asyncio.Handle] = deque()
        self._timers: list[tuple[float, int, _Timer]] = []
        """A heap; the number keeps the order in which they were set."""
        self._number = count()
        self._cancelled = 0
        """Cancelled timers in the heap."""

    def time(self) -> float:
        return self._elapsed

    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.Handle:
        call = _Call(self, callback, args)
        self._ready.append(call)
        return call

    def call_later(  # type: ignore[override]
        self,
        delay: float,
        callback: Callable[..., object],
        *args: Any,
        context: contextvars.Context | None = None,
    ) -> asyncio.TimerHandle:
        return self._call_at(self._elapsed + delay, callback, args)

    def call_at(  # type: ignore[override]
        self,
        when: float,
        callback: Callable[..., object],
        *args: Any,
        context: contextvars.Context | None = None,
    ) -> asyncio.TimerHandle:
        return self._call_at(when, callback, args)

    def _call_at(self, when: float, callback: Callable[..., object], args: Any) -> asyncio.TimerHandle:
        timer = _Timer(when, self, callback, args)
        heapq.heappush(self._timers, (when, next(self._number), timer))
        return timer

    def run_in_executor(  # type: ignore[override]
        self, executor: object, function: Callable[..., T], *args: Any
    ) -> asyncio.Future[T]:
        """Done at once: a thread's end would come at a moment of the machine's, not of the program's."""
        done: asyncio.Future[T] = self.create_future()
        try:
            done.set_result(function(*args))
        except Exception as error:
            done.set_exception(error)
        return done

    def _run_once(self) -> None:
        """Turns of the loop until it is asked to stop: without a look at sockets, a system call that would be
        most of their cost."""
        ready = self._ready
        while True:
            if self._cancelled:
                self._drop_cancelled()
            if not ready and not self._stopping:  # type: ignore[attr-defined]
                self._jump()
            timers, until = self._timers, self._elapsed + SAME
            while timers and timers[0][0] < until:
                timer = heapq.heappop(timers)[2]
                timer._scheduled = False
                ready.append(timer)
            self.calls += len(ready)
            for _ in range(len(ready)):
                call = ready.popleft()
                if call._cancelled:
                    continue
                try:
                    call._callback(*call._args)  # type: ignore[attr-defined]
                except (SystemExit, KeyboardInterrupt):
                    raise
                except BaseException as error:
                    self._report_error(call, error)
            if self._stopping:  # type: ignore[attr-defined]
                return

    def _report_error(self, call: asyncio.Handle, error: BaseException) -> None:
        message = f"exception in the callback {call!r}"
        self.call_exception_handler({"message": message, "exception": error, "handle": call})

    def _jump(self) -> None:
        if not self._timers:
            raise Deadlock(_explain(self))
        self._elapsed = max(self._elapsed, self._timers[0][0])

    def _drop_cancelled(self) -> None:
        timers = self._timers
        if self._cancelled > CANCELLED and 2 * self._cancelled > len(timers):
            self._timers = timers = [timer for timer in timers if not timer[2]._cancelled]
            heapq.heapify(timers)
            self._cancelled = 0
        while timers and timers[0][2]._cancelled:
            heapq.heappop(timers)
            self._cancelled -= 1


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
    with _collected_seldom(), asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(main)


@contextmanager
def _collected_seldom() -> Iterator[None]:
    before = gc.get_threshold()
    gc.set_threshold(*COLLECT)
    try:
        yield
    finally:
        gc.set_threshold(*before)
