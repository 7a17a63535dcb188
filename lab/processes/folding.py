"""Folds the events of a long synthetic run and measures the State's memory, for the row `dashboard`.

    python -m lab.processes.folding '{"peers": 50, "marks": [100000, 1000000], "history": {}}'
        -> {"seconds": of folding, "events": all, "mib": [at each mark]}

It runs in its own process, so that the memory is the fold's. First come events of more peers than a State has
rows for, so that this limit is reached from the start; `history` may set the other limits low enough to be
reached at the first mark, so that any growth after it would never end. Memory is the growth of the resident
set since before the first event.
"""

from __future__ import annotations

import gc
import math
import sys
import time
from itertools import islice

from dashboard.fold.state import State, fold
from lab.figures.resident import NOW, resident
from lab.swarms.partner import opened, say
from lab.swarms.synthetic_events import swarm_events
from swarm.settings.page import History

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
    return resident(NOW)


if __name__ == "__main__":
    sys.exit(main())
