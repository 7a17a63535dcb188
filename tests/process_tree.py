"""What runs on this machine, from /proc."""

from __future__ import annotations

import os
from pathlib import Path


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
