"""Ends a program on signals and when its parent dies.

SIGINT, SIGTERM or SIGHUP (a closed terminal) asks the peer to finish its current group or step and leave; a
second one ends it now. Under `nohup` SIGHUP stays ignored. A child of `swarm up` gets SIGTERM from the kernel
when its parent dies, even of SIGKILL.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import signal
import sys
from collections.abc import Callable, Coroutine
from typing import Any

from peers.errors import Interrupted, say
from swarm.processes.event_loop import EventLoop
from swarm.processes.start import die_with_parent

PARENT = "SWARM_PARENT"
"""Environment variable: pid of the process that this one must not outlive."""

LEAVE_PATIENCE = 120.0
"""Seconds for a peer that was asked to leave: a group or a step of a large model takes most of them."""

FINISHING = "each finishes the group or step at hand"
"""State of peers that were asked to leave."""

ENDED = f"processes that are still here after {LEAVE_PATIENCE:.0f} s are ended."
"""What becomes of those that do not."""

FILES = 1 << 16
"""Open files that a peer lets itself have: far more than it needs. Of a hard limit of a billion, as
containers have it, no more is taken: some libraries close all descriptors below the limit, one by one."""


def leave_signals() -> list[signal.Signals]:
    """Signals that ask a program to leave, without SIGHUP where the program was started to ignore it, as
    `nohup` does."""
    asked = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    return [
        number
        for number in asked
        if number is not signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN
    ]


def interrupt() -> None:
    """Raise Interrupted on SIGTERM and SIGHUP, as Python raises KeyboardInterrupt on SIGINT: code that
    started processes ends them while the exception passes."""

    def leave(number: int, _: Any) -> None:
        raise Interrupted(number)

    for number in leave_signals():
        if number is not signal.SIGINT:
            signal.signal(number, leave)


class SignalHandler:
    """Handles the signals that ask to leave: the first calls `leave`, the second cancels the program."""

    def __init__(self) -> None:
        self.signal: int | None = None
        """The last signal received."""
        self.leave: Callable[[], None] | None = None
        """Asks the program to end; None while there is nothing to finish, and the first signal cancels."""

    def install(self, program: asyncio.Task[None]) -> None:
        for number in leave_signals():
            asyncio.get_running_loop().add_signal_handler(number, self._on_signal, number, program)

    def _on_signal(self, number: int, program: asyncio.Task[None]) -> None:
        again, self.signal = self.signal is not None, number
        if again or self.leave is None:
            program.cancel()
            return
        self.leave()
        say("leaving: finishing what is at hand (again to leave now)")


def run_until_signalled(program: Callable[[SignalHandler], Coroutine[Any, Any, None]]) -> int:
    """Run a program to its end and return 0. Raises Interrupted after a signal, even when the program
    finished."""
    _die_with_parent()
    allow_files()
    on_signal = SignalHandler()

    async def main() -> None:
        task = asyncio.current_task()
        assert task is not None
        on_signal.install(task)
        await program(on_signal)

    try:
        with asyncio.Runner(loop_factory=EventLoop) as runner:
            runner.run(main())
    except asyncio.CancelledError:
        if on_signal.signal is None:
            raise
    if on_signal.signal is not None:
        raise Interrupted(on_signal.signal)
    return 0


def allow_files() -> None:
    """Raise the soft limit of open files to the hard one, but to no more than FILES. Shells give 1024 for the
    sake of programs that call select(2), which knows no higher descriptor; a peer polls."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = FILES if hard == resource.RLIM_INFINITY else min(hard, FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(OSError, ValueError):  # a system with a lower limit of its own
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _die_with_parent() -> None:
    parent = os.environ.get(PARENT)
    if parent is not None and sys.platform == "linux":
        die_with_parent(signal.SIGTERM)
        if os.getppid() != int(parent):  # the parent died before the kernel was asked
            raise Interrupted(signal.SIGTERM)
