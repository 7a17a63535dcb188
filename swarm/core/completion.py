"""When a run is complete (`run.stop`): each peer decides it by the events that it received, whatever a seed
says.

    newest trusted version, each evaluator's last two accuracies --is_complete--> whether it is

Half of the evaluators or more measured the accuracy, each in two evaluations in a row: one result above the
line is chance in one run of many, and one evaluator of two or more ends no run. An evaluator with fewer than
two evaluations does not count as having measured it. Not handled here: leaving then (peers.runtime.run_end).
"""

from __future__ import annotations

from collections.abc import Iterable
from statistics import median_low

from swarm.settings.config import Stop

Accuracies = tuple[float, float]
"""Of one evaluator's last evaluation and of the one before, 0 to 1; -1 where there is none."""


def is_complete(stop: Stop, version: int, evaluators: Iterable[Accuracies]) -> bool:
    """`version`: the newest trusted one; -1 while there is none."""
    if 0 < stop.versions <= version:
        return True
    found = [min(both) for both in evaluators] if stop.accuracy > 0 else []
    return bool(found) and median_low(found) >= stop.accuracy
