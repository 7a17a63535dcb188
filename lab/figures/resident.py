"""Memory of this process, from /proc: getrusage's maximum begins with what the parent had held."""

from __future__ import annotations

from pathlib import Path

NOW, PEAK = "VmRSS:", "VmHWM:"


def resident(which: str) -> int:
    """Bytes: NOW, or the PEAK since the process began (imaging.py may forget it before)."""
    return int(Path("/proc/self/status").read_text().partition(which)[2].split()[0]) << 10
