"""The pause of a run folder's peers: a file that every peer of it reads, so that it survives their restarts.

    swarm pause --keep--> <run folder>/pause --until--> each peer, once a second      swarm resume --end-->

Not handled here: how a peer pauses (peers.runtime.limits.pause_gate).
"""

from __future__ import annotations

import math
import time
from pathlib import Path

from swarm.storage.durable import Torn, read_checked, write_checked

PAUSE = "pause"

DAY = 86400.0


def keep(run_folder: Path, until: float) -> None:
    """Pause the peers of this folder until then, in unix seconds; `math.inf`: until `end`. Raises OSError."""
    write_checked(run_folder / PAUSE, repr(until).encode())


def end(run_folder: Path) -> None:
    """Let them go on. Raises OSError."""
    (run_folder / PAUSE).unlink(missing_ok=True)


def until(run_folder: Path, now: float) -> float | None:
    """When the pause of this folder ends, `math.inf` for one without an end; None where there is none now."""
    try:
        ends = float(read_checked(run_folder / PAUSE))
    except (Torn, ValueError):
        return math.inf  # a pause was requested, and a damaged file has no end
    except OSError:
        return None
    return ends if ends > now else None


def sentence(until: float, now: float) -> str:
    """For example `until 14:30`."""
    if until == math.inf:
        return "until `swarm resume`"
    form = "%H:%M" if until - now < DAY / 2 else "%Y-%m-%d %H:%M"
    return f"until {time.strftime(form, time.localtime(until))}, or `swarm resume`"
