"""Ends a program on signals and with its parent.

SIGINT, SIGTERM or SIGHUP (the terminal is closed) once asks the peer to finish the group or step at hand and
leave; twice ends it now. Under `nohup` SIGHUP stays ignored. A child of `swarm up` gets SIGTERM from the
kernel when its parent dies, however it dies.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable, Coroutine
from typing import Any

from peers.errors import Interrupted, say
from swarm.process import die_with_parent

PARENT = "SWARM_PARENT"
"""Environment variable: the process that this one must not outlive."""


def endings() -> list[signal.Signals]:
    """Signals that ask a program to leave, without those that whoever started it has it ignore, as `nohup`
    does."""
    asked = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    return [
        number
        for number in asked
        if number is not signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN
    ]


def interrupt() -> None:
    """Make an exception of every one of them, as Python does of SIGINT: what is at hand ends its processes on
    the way out."""

    def leave(number: int, _: Any) -> None:
        raise Interrupted(number)

    for number in endings():
        if number is not signal.SIGINT:
            signal.signal(number, leave)


class SignalHandler:
    """A signal that asks to leave: the first asks `leave`, the second cancels the program."""

    def __init__(self) -> None:
        self.signal: int | None = None
        self.leave: Callable[[], None] | None = None

    def install(self, program: asyncio.Task[None]) -> None:
        for number in endings():
            asyncio.get_running_loop().add_signal_handler(number, self._on_signal, number, program)

    def _on_signal(self, number: int, program: asyncio.Task[None]) -> None:
        again, self.signal = self.signal is not None, number
        if again or self.leave is None:
            program.cancel()
            return
        self.leave()
        say("leaving: finishing what is at hand (again to leave now)")


def run_until_signalled(program: Callable[[SignalHandler], Coroutine[Any, Any, None]]) -> int:
    """Run a program to its end: 0. Raises Interrupted after a signal, however far the program came."""
    _follow_parent()
    on_signal = SignalHandler()

    async def main() -> None:
        task = asyncio.current_task()
        assert task is not None
        on_signal.install(task)
        await program(on_signal)

    try:
        asyncio.run(main())
    except asyncio.CancelledError:
        if on_signal.signal is None:
            raise
    if on_signal.signal is not None:
        raise Interrupted(on_signal.signal)
    return 0


def _follow_parent() -> None:
    parent = os.environ.get(PARENT)
    if parent is not None and sys.platform == "linux":
        die_with_parent(signal.SIGTERM)
        if os.getppid() != int(parent):  # it died before the kernel knew of us
            raise Interrupted(signal.SIGTERM)
