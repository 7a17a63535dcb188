"""When a run is complete (`run.stop`): each peer finds it by what it heard itself, whatever a seed says.

    newest version that is believed, each evaluator's last two accuracies --is_complete--> whether it is

Half of the evaluators or more found the accuracy, each in two evaluations in a row: one number above the line
is chance in one run of many, and one evaluator of two or more ends nobody's run. An evaluator that has
evaluated fewer than two versions has not found it. Not handled here: who leaves then (peers.runtime.run_end).
"""

from __future__ import annotations

from collections.abc import Iterable
from statistics import median_low

from swarm.settings.config import Stop

Accuracies = tuple[float, float]
"""Of one evaluator's last evaluation and of the one before, 0 to 1; -1 where there is none."""


def is_complete(stop: Stop, version: int, evaluators: Iterable[Accuracies]) -> bool:
    """`version`: the newest one that is believed; -1 while there is none."""
    if 0 < stop.versions <= version:
        return True
    found = [min(both) for both in evaluators] if stop.accuracy > 0 else []
    return bool(found) and median_low(found) >= stop.accuracy
