"""How many CPU cores this process may run on, and how long processes waited for one."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import NamedTuple


def processors() -> int:
    """Those that its affinity allows, which `peer.limits.cpu` makes fewer
    (peers.runtime.limits.resource_limits)."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class CoreTurns(NamedTuple):
    """Of a thread on the cores, as Linux counts them."""

    waited: float
    """Seconds that it waited for those which it had."""
    had: int


class CoreWaits:
    """For how long processes that want to run have waited for a core since this was made."""

    def __init__(self, pids: Collection[int]) -> None:
        self._pids, self._since = pids, time.monotonic()
        self._before = self._turns()

    def seconds(self) -> float:
        """Of the thread that waited longest. A process that is stopped, or waits for something else, does not
        wait for a core. 0 where the system does not count it."""
        waits = (self._waited(thread, turns) for thread, turns in self._turns().items())
        return max(waits, default=0.0)

    def _waited(self, thread: Path, now: CoreTurns) -> float:
        before = self._before.get(thread, CoreTurns(0.0, 0))
        # A wait is counted when it is over.
        if now.had == before.had and _wants_to_run(thread):
            return time.monotonic() - self._since
        return now.waited - before.waited

    def _turns(self) -> Mapping[Path, CoreTurns]:
        found = {}
        for pid in self._pids:
            for thread in Path(f"/proc/{pid}/task").glob("*"):
                with contextlib.suppress(OSError):  # it has ended
                    _, waited, had = map(int, (thread / "schedstat").read_text().split())
                    found[thread] = CoreTurns(waited / 1e9, had)
        return found


def _wants_to_run(thread: Path) -> bool:
    try:
        return (thread / "stat").read_text().rpartition(")")[2].split()[0] == "R"
    except OSError:
        return False
