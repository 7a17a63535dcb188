"""CPU seconds of a peer are those of all its processes, wherever these are."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from benchmarks import processor_time
from benchmarks.local_swarm import LocalSwarm

BUSY = 0.2
"""Seconds."""

SPIN = f"import time\nwhile time.process_time() < {BUSY}: pass\n"
PEER = f"""
import subprocess, sys, time
from swarm import process
engine = process.Child([sys.executable, "-c", {SPIN + "time.sleep(99)"!r}])
subprocess.run([sys.executable, "-c", {SPIN!r}])
print("done", flush=True)
time.sleep(99)
"""


@pytest.fixture
def peer() -> Iterator[subprocess.Popen[str]]:
    """It has used nothing itself; a child in a session of its own spins on, and another one has ended."""
    command = [sys.executable, "-c", PEER]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "done\n"
    yield process
    process.kill()
    process.wait()
    process.stdout.close()


def test_a_process_in_a_session_of_its_own_and_one_that_ended_count(peer: subprocess.Popen[str]) -> None:
    home = LocalSwarm()
    home.processes["sampler-1"] = peer  # type: ignore[assignment]
    deadline = time.monotonic() + 30
    while sum(home.cpu().values()) < 2 * BUSY and time.monotonic() < deadline:
        time.sleep(0.02)
    spent = home.cpu()
    least = round(min(spent["children"], spent["peer"]), 2)  # a sum of hundredths
    assert least >= BUSY - 0.03
    assert processor_time.total(peer.pid) >= 2 * BUSY - 0.04
