"""How long a process waited for a core, as the system counts it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from swarm.processes.processors import CoreWaits

SPIN = "import os; os.sched_setaffinity(0, {%d}); %s; print('up', flush=True)\nwhile True: pass"
IDLE = "os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))"


def spinning(core: int, how: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", SPIN % (core, how)], stdout=subprocess.PIPE)


@contextmanager
def starved() -> Iterator[subprocess.Popen[bytes]]:
    """A process that gets a core only where no other one wants it, beside one that always does."""
    core = min(os.sched_getaffinity(0))
    idle, greedy = spinning(core, IDLE), spinning(core, "0")
    for one in (idle, greedy):
        assert one.stdout is not None and one.stdout.readline() == b"up\n"
    try:
        yield idle
    finally:
        for one in (idle, greedy):
            one.kill()
            one.communicate()


def test_a_process_that_has_no_core_waits_and_one_that_is_stopped_or_sleeps_does_not() -> None:
    with starved() as idle:
        since, waits = time.monotonic(), CoreWaits([idle.pid])
        while (waited := waits.seconds()) <= 0.5:
            assert time.monotonic() < since + 30.0
            time.sleep(0.1)
        assert waited <= time.monotonic() - since

    asleep, stopped = subprocess.Popen(["sleep", "60"]), subprocess.Popen(["sleep", "60"])
    try:
        os.kill(stopped.pid, signal.SIGSTOP)
        time.sleep(0.5)
        waits = CoreWaits([stopped.pid, asleep.pid])
        time.sleep(1.0)
        assert waits.seconds() < 0.5
    finally:
        for one in (asleep, stopped):
            one.kill()
            one.wait()


def test_a_process_that_is_gone_waits_for_nothing() -> None:
    ended = subprocess.Popen(["true"])
    ended.wait()
    assert CoreWaits([ended.pid]).seconds() == 0.0
