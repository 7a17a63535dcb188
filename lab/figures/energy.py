"""Joules that the processor's packages use, where Linux reports them: RAPL's counters.

    read() -> package -> (microjoules so far, where they begin anew)    joules(before, after) -> float | None

Root alone may read them on most machines, and virtual ones have none. Not handled: a counter that began anew
twice between two readings, which takes a quarter of an hour at full load; graphics cards.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

FOLDER = Path("/sys/class/powercap")

Counters = Mapping[str, tuple[int, int]]


def read(folder: Path = FOLDER) -> Counters:
    """Empty where nothing can be read."""
    found = {}
    for package in sorted(folder.glob("intel-rapl:?")):  # `intel-rapl:0:1` is a part of `intel-rapl:0`
        try:
            now, most = ((package / f"{name}_uj").read_text() for name in ("energy", "max_energy_range"))
        except OSError:
            continue
        found[package.name] = int(now), int(most)
    return found


def joules(before: Counters, after: Counters) -> float | None:
    """None where no package was read both times."""
    spent = [(now - before[name][0]) % (most + 1) for name, (now, most) in after.items() if name in before]
    return sum(spent) / 1e6 if spent else None
