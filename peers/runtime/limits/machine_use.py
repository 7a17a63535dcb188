"""This machine's state from the kernel, without privileges: processor time, memory, battery.

    /proc/stat, /proc/<pid>/stat --> share of the processor that other programs take
    /proc/<pid>/smaps_rollup     --> memory of a tree of processes, shared pages by their part
    /sys/class/power_supply      --> whether a battery feeds it

Not handled: keyboard and mouse, whose idle time a desktop reports to its own session alone; a machine in use
shows by the processor time of other programs.
"""

from __future__ import annotations

import os
from collections.abc import Collection
from pathlib import Path
from typing import NamedTuple

PROC, SUPPLIES = Path("/proc"), Path("/sys/class/power_supply")


class CpuTicks(NamedTuple):
    """Clock ticks of all cores since the machine was started."""

    every: int
    idle: int
    ours: int
    """Of the processes asked for, and of their children that have ended."""

    def others_since(self, before: CpuTicks) -> float:
        """Share of all cores that other programs took since `before`, 0 to 1."""
        every = self.every - before.every
        busy = every - (self.idle - before.idle)
        return max(0.0, busy - max(0, self.ours - before.ours)) / every if every > 0 else 0.0


def times(roots: Collection[int]) -> CpuTicks:
    """Processor time of the machine, and of these processes with all below them."""
    cores = [
        int(ticks) for ticks in _text(PROC / "stat").split("\n", 1)[0].split()[1:8]
    ]  # time of a virtual machine's host belongs to no process here
    ours = sum(sum(map(int, fields[11:15])) for fields in tree(roots).values())
    return CpuTicks(sum(cores), cores[3] + cores[4], ours)


def memory(roots: Collection[int]) -> int:
    """Bytes of RAM of these processes and all below them; pages that several share count by their part."""
    return sum(_pss(pid) for pid in tree(roots))


def tree(roots: Collection[int]) -> dict[int, list[str]]:
    """These processes and all below them: pid -> the fields of its /proc/<pid>/stat, from its state on."""
    known: dict[int, list[str]] = {}
    for name in os.listdir(PROC):
        if name.isdigit() and (text := _text(PROC / name / "stat")):
            known[int(name)] = text.rpartition(")")[2].split()  # a program's name may have blanks
    found: dict[int, list[str]] = {}
    below = [pid for pid in roots if pid in known]
    while below:
        found |= {pid: known[pid] for pid in below}
        below = [pid for pid, fields in known.items() if int(fields[1]) in below and pid not in found]
    return found


def on_battery(supplies: Path = SUPPLIES) -> bool:
    """Whether a battery feeds this machine: one discharges, and no mains is there. The battery of a mouse
    does not count: its scope is a device."""
    discharges = False
    for supply in supplies.iterdir() if supplies.is_dir() else ():
        if _text(supply / "online").strip() == "1":
            return False
        device = _text(supply / "scope").strip() == "Device"
        discharges |= not device and _text(supply / "status").strip() == "Discharging"
    return discharges


def folder_size(folder: Path) -> int:
    """Bytes that the files in a folder take on the disk."""
    found = 0
    for path, _, files in os.walk(folder):
        for name in files:
            try:
                found += 512 * os.lstat(os.path.join(path, name)).st_blocks
            except FileNotFoundError:  # removed meanwhile
                continue
    return found


def _pss(pid: int) -> int:
    for line in _text(PROC / str(pid) / "smaps_rollup").splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) << 10
    return 0


def _text(path: Path) -> str:
    """A file of the kernel; empty where there is none, as for a process that has ended."""
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""
