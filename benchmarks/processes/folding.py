"""Folds a long made-up run and weighs the State, for the row `dashboard`: a process of its own, so that its
memory is the fold's.

    python -m benchmarks.processes.folding '{"peers": 50, "marks": [100000, 1000000], "history": {}}'
        -> {"seconds": of folding, "events": all, "mib": [at each mark]}

Before them comes a swarm of more peers than a State has rows for, so that this limit is full from the start;
`history` may set the others low enough to be full at the first mark, so that what grows after it would grow
for ever. Memory is this process's resident set above what it was before any event was folded.
"""

from __future__ import annotations

import gc
import math
import os
import sys
import time
from itertools import islice
from pathlib import Path

from benchmarks.partner import opened, say
from benchmarks.synthetic_events import swarm_events
from dashboard.state import State, fold
from swarm.config import History

EARLIER = 1100
"""Peers of the earlier swarm: more than History.peers."""

PASSING = 10.0
"""Seconds that the earlier swarm stays."""

BATCH = 10_000
"""Events made before they are folded, so that making them is not in the time."""

MIB = 1 << 20


def main() -> int:
    setup = opened()
    events = swarm_events(setup["peers"], math.inf, PASSING)
    batch = list(islice(events, BATCH))
    base, state, folded, spent = _resident(), State(history=History(**setup["history"])), 0, 0.0
    for event in swarm_events(EARLIER, PASSING, 0.0, seed=1):
        fold(state, event)
    weights: list[float] = []
    for mark in setup["marks"]:
        while folded < mark:
            batch = batch or list(islice(events, BATCH))
            began = time.perf_counter()
            for event in batch:
                fold(state, event)
            spent += time.perf_counter() - began
            folded += len(batch)
            batch.clear()
        weights.append((_resident() - base) / MIB)
    say(seconds=spent, events=folded, mib=weights)
    return 0


def _resident() -> int:
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


if __name__ == "__main__":
    sys.exit(main())
