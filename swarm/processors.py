"""How many CPU cores this process may run on."""

from __future__ import annotations

import os


def processors() -> int:
    """Those that its affinity allows, which `peer.limits.cpu` makes fewer (peers.runtime.manners)."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
