"""What runs on this machine, from /proc."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

PATIENCE = 60.0
"""Seconds in which what is under way has happened, on a machine that does much else."""


def processes() -> dict[int, int]:
    """Process -> parent of everything that runs and is no zombie."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            state, parent = (folder / "stat").read_text().rpartition(")")[2].split()[:2]
        except OSError:  # it ended meanwhile
            continue
        if state != "Z":
            found[int(folder.name)] = int(parent)
    return found


def children() -> set[int]:
    """Processes below this one, at any depth."""
    alive, found, wanted = processes(), set[int](), {os.getpid()}
    while wanted := {child for child, parent in alive.items() if parent in wanted} - found:
        found |= wanted
    return found


def ended(*wanted: int, within: float = PATIENCE) -> bool:
    """Wait until none of these processes runs, for at most `within` seconds: were they gone then?"""
    end = time.monotonic() + within
    while alive := processes().keys() & {*wanted}:
        if time.monotonic() > end:
            return False
        time.sleep(0.02)
    return not alive


def child_of_a_killed_parent(program: str) -> int:
    """Run a Python program that prints its child's process id, and kill it while that child runs."""
    parent = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    assert child in processes()
    parent.kill()
    parent.wait()
    parent.stdout.close()
    return child


def written(path: Path) -> str:
    """Wait until another process has written this file, for at most PATIENCE seconds: what it wrote."""
    end = time.monotonic() + PATIENCE
    while not (path.exists() and path.read_text()):
        assert time.monotonic() < end, f"nobody wrote {path}"
        time.sleep(0.02)
    return path.read_text()
