"""The event loop of processes that have a network: uvloop's, kept to asyncio's contract.

    asyncio.Runner(loop_factory=EventLoop)        asyncio.create_subprocess_exec(...) inside of it

Children are started as Python starts them. uvloop's own way is a fork that takes the locks of logging and of
imports, one after the other: a thread that imports what logs takes them in the other order, and both wait for
ever. subprocess.Popen takes neither. Not handled: shells.
"""

from __future__ import annotations

import asyncio
import subprocess
import threading
from asyncio.base_subprocess import BaseSubprocessTransport
from collections.abc import Callable
from contextvars import Context
from typing import Any, TypeVarTuple

import uvloop

Arguments = TypeVarTuple("Arguments")

TICK = 0.001
"""Seconds: uvloop's timers count milliseconds."""


class EventLoop(uvloop.Loop):
    def call_at(
        self,
        when: float,
        callback: Callable[[*Arguments], object],
        *args: *Arguments,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        """Call `callback` at loop time `when`, or a tick later where that has come: uvloop's own handle does
        not know its time then."""
        return self.call_later(max(when - self.time(), TICK), callback, *args, context=context)

    async def subprocess_exec(
        self,
        protocol_factory: Callable[[], Any],
        *args: Any,
        stdin: Any = subprocess.PIPE,
        stdout: Any = subprocess.PIPE,
        stderr: Any = subprocess.PIPE,
        **kwargs: Any,
    ) -> tuple[Any, Any]:
        """The transport of a child process with the command `args`, and its protocol. `kwargs` are
        subprocess.Popen's. Raises OSError where it cannot be started."""
        protocol, connected = protocol_factory(), self.create_future()
        child = _Child(self, protocol, args, False, stdin, stdout, stderr, 0, connected, **kwargs)
        try:
            await connected
        except BaseException:
            child.close()
            raise
        return child, protocol


class _Child(BaseSubprocessTransport):
    def _start(
        self, args: Any, shell: Any, stdin: Any, stdout: Any, stderr: Any, bufsize: Any, **kwargs: Any
    ) -> None:
        self._proc = subprocess.Popen(
            args, bufsize, stdin=stdin, stdout=stdout, stderr=stderr, shell=shell, **kwargs
        )
        threading.Thread(target=self._await_end, args=(self._proc,), name="child's end", daemon=True).start()

    def _await_end(self, child: subprocess.Popen[bytes]) -> None:
        code = child.wait()
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._process_exited, code)
