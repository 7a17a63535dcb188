"""CPU seconds of a process and of all below it.

    of(pid) -> process -> Spent(its program, its CPU seconds so far)

Processes are found by their parents, not by session or group: an engine and a DHT child have their own.
Seconds of a process that ended are its parent's, once that has waited for it. Not handled: one whose parent
ended before it.
"""

from __future__ import annotations

import contextlib
from typing import NamedTuple

import psutil  # type: ignore[import-untyped]

from lab.figures.table import Unmeasured


class Spent(NamedTuple):
    name: str
    """The module of ours that it was started with, else its program."""
    seconds: float
    """Of itself."""
    ended: float
    """Of its children that have ended, and theirs."""

    @property
    def all(self) -> float:
        return self.seconds + self.ended


def of(pid: int) -> dict[int, Spent]:
    """The process itself comes first. Raises Unmeasured where it has ended, waited for or not."""
    try:
        root = psutil.Process(pid)
        found, below = {pid: _spent(root)}, root.children(recursive=True)
    except psutil.NoSuchProcess:
        raise Unmeasured(f"process {pid} ended before its CPU time was read") from None
    for one in below:
        with contextlib.suppress(psutil.NoSuchProcess):  # its seconds are its parent's by now
            found[one.pid] = _spent(one)
    return found


def total(pid: int) -> float:
    return sum(spent.all for spent in of(pid).values())


def _spent(process: psutil.Process) -> Spent:
    with process.oneshot():
        name = next((word for word in process.cmdline() if word.startswith("peers.")), process.name())
        times = process.cpu_times()
    return Spent(name, times.user + times.system, times.children_user + times.children_system)
