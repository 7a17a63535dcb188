"""`swarm pause` and `swarm resume`: the peers of a run folder rest, and go on."""

from __future__ import annotations

import math
import time
from pathlib import Path

from peers.build import run_folder
from peers.errors import say
from peers.runtime import peer_folder
from peers.runtime.limits import pause as pauses


def pause(folder: Path, seconds: float | None) -> int:
    """Pause the peers of this folder for `seconds`, or until they are resumed. Raises WrongUsage, OSError."""
    run_folder.opened(folder)
    now = time.time()
    until = math.inf if seconds is None else now + seconds
    pauses.keep(folder, until)
    say(f"paused {pauses.sentence(until, now)}: {_effect(folder)}")
    return 0


def _effect(folder: Path) -> str:
    names = _names(folder)
    if not names:
        return "no peer of this folder runs now, and one that is started rests"
    return (
        f"{', '.join(names)} will keep a place in the run, serve releases and compute nothing once the group"
        " or step at hand is done; `swarm leave` ends that too"
    )


def resume(folder: Path) -> int:
    """Let them go on. Raises WrongUsage, OSError."""
    run_folder.opened(folder)
    if pauses.until(folder, time.time()) is None:
        say(f"{folder} is not paused")
        return 0
    pauses.end(folder)
    names = _names(folder)
    say(f"no longer paused: {', '.join(names) or 'no peer of this folder runs now'}")
    return 0


def _names(folder: Path) -> list[str]:
    return sorted(peer_folder.running(folder).keys() - {"up"})
