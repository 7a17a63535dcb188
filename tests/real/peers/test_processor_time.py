"""CPU seconds of a peer are those of all its processes, wherever these are."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from lab import bench, flames
from lab.figures import processor_time
from lab.figures.table import Figure, Unmeasured
from lab.rows import accuracy, memory
from lab.swarms.local_swarm import LocalSwarm
from lab.swarms.partner import Partner

BUSY = 0.2
"""Seconds."""

SPIN = f"import os, time\nwhile sum(os.times()[:2]) < {BUSY}: pass\n"
"""By the clock that /proc has, too: on a busy machine it is behind process_time()."""

PEER = f"""
import subprocess, sys, time
from swarm.processes import process
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


@pytest.fixture
def dead() -> Iterator[subprocess.Popen[bytes]]:
    """A peer that has just ended with code 3; nobody has waited for it."""
    process = subprocess.Popen([sys.executable, "-c", "raise SystemExit(3)"])
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    yield process
    process.wait()


@pytest.fixture
def home(dead: subprocess.Popen[bytes]) -> LocalSwarm:
    home = LocalSwarm()
    home.processes["learner-1"] = dead
    home._log("learner-1").write_text("swarm: no memory\n")
    return home


def test_a_peer_that_died_is_named_with_its_last_words(home: LocalSwarm) -> None:
    for look in (home.cpu, memory.Scales(home).look):
        with pytest.raises(Unmeasured, match=r"learner-1 ended with code 3: swarm: no memory"):
            look()


def test_a_process_that_is_gone_is_no_crash(dead: subprocess.Popen[bytes], tmp_path: Path) -> None:
    for look in (processor_time.total, memory._weighed, lambda pid: flames.record(pid, 1, tmp_path)):
        with pytest.raises(Unmeasured, match=r"ended before|py-spy is not installed"):
            look(dead.pid)
    dead.wait()
    for look in (processor_time.total, memory._weighed):
        with pytest.raises(Unmeasured, match=f"process {dead.pid} ended before"):
            look(dead.pid)


def test_a_partner_that_died_is_named_whatever_is_asked_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    with Partner("lab.no_such_module", {}) as partner:
        os.waitid(os.P_PID, partner.pid, os.WEXITED | os.WNOWAIT)
        for look in (partner.cpu, lambda: partner.ask(do="send")):
            with pytest.raises(Unmeasured, match=r"lab\.no_such_module.* ended"):
                look()


def test_one_dead_peer_ends_its_row_and_not_the_table(
    home: LocalSwarm, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def measure(_: object) -> list[Figure]:
        used = accuracy.Used(home, "evaluator-1")
        used.look()
        return []

    monkeypatch.setattr(accuracy, "measure", measure)
    found = Figure(row="memory", what="seed", value=9.0, unit="MiB PSS")
    monkeypatch.setattr(memory, "measure", lambda _: [found])
    assert bench.main(["accuracy", "memory"], False) == bench.DONE
    table = capsys.readouterr().out
    assert "learner-1 ended with code 3: swarm: no memory" in table and "MiB PSS" in table
