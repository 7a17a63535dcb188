"""Who runs first on a machine that a benchmark shares with what would have machines of its own elsewhere."""

from __future__ import annotations

from pathlib import Path

import psutil  # type: ignore[import-untyped]

LEAST = 19
"""Nice value of what runs when nobody else does."""


def step_back(pid: int) -> None:
    """Let a process, and all below it, run when nobody else does. Linux weighs sessions, and each of ours is
    in one of its own (man 7 sched, the autogroup feature); where it has no such feature nothing changes."""
    me = psutil.Process(pid)
    for process in (me, *me.children(recursive=True)):
        weight = Path(f"/proc/{process.pid}/autogroup")
        if weight.exists():
            weight.write_text(str(LEAST))
