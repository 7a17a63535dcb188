"""How long a round of averaging takes on a line, and what to change where that is too long.

    Run + trained values + uplink --> a sentence

With two learners each sends every value once; with more it is once for a slow line, at most twice for a fast
one (swarm.core.agreement.shares). At sites it sends a contribution once. Not handled: other traffic on the
line.
"""

from __future__ import annotations

from dashboard.text import duration
from swarm.core.agreement.shares import WIRE_BYTES
from swarm.learn.learners.contribution import largest
from swarm.settings.config import Run

MBIT = 1e6 / 8
"""Bytes per second."""


def needs(run: Run, values: int, uplink: float) -> str:
    """A sentence: bytes and seconds of a round over `values` at `uplink` bytes per second."""
    size = _size(run, values)
    form = "a contribution" if run.averaging.mode == "sites" else run.averaging.compression
    return (
        f"a round needs {duration(size / uplink)} on a line of {uplink / MBIT:.3g} Mbit/s"
        f" ({size / 1e9:.3g} GB in {form})"
    )


def objection(run: Run, values: int, uplink: float) -> str:
    """Why a round does not fit through a line of `uplink` bytes per second, and what to do; empty when it
    does."""
    if _size(run, values) <= uplink * longest(run):
        return ""
    limit = "run.averaging.deadline" if run.averaging.deadline else "half of run.window.seconds"
    return (
        f"{needs(run, values, uplink)}, and may take {duration(longest(run))} ({limit}): use"
        f" {' or '.join(_ways(run))}"
    )


def longest(run: Run) -> float:
    """Seconds that a round may take: the run's deadline, else half of the window, in which the groups of the
    next one are sampled."""
    return run.averaging.deadline or run.window.seconds / 2


def _size(run: Run, values: int) -> float:
    if run.averaging.mode == "sites":
        return largest(values, run.averaging.density)
    return values * WIRE_BYTES[run.averaging.compression]


def _ways(run: Run) -> list[str]:
    if run.averaging.mode == "sites":
        return ["a smaller run.averaging.density", "a faster line"]
    ways = []
    if run.model.training == "full":
        ways.append("run.model.training = lora")
    if run.averaging.compression != "int8":
        ways.append("run.averaging.compression = int8")
    return [*ways, "run.averaging.mode = sites", "a faster line"]
