"""When a run is complete (`run.stop`): each peer decides it by the events that it received, whatever a seed
says.

    newest trusted version, each evaluator's last accuracy --is_complete--> whether it is

An accuracy counts by the lower end of its interval of 95 %: of 256 tasks 240 have to be right for 90 %. In
four of five runs of the demo that was so at most ten versions before or after two results in a row of 90 %;
simulated ones ended below it a third as often. Where all answers are right, these tasks can show no more, and
the accuracy counts as 1.

More than half of the evaluators found it: one of two or more ends no run. Not handled here: leaving then
(peers.runtime.run_end).
"""

from __future__ import annotations

from collections.abc import Iterable
from statistics import median_low

from swarm.core import intervals
from swarm.frames.grammar import some
from swarm.settings.config import Run

Judged = tuple[float, int]
"""Of one evaluator's last evaluation: accuracy, 0 to 1, and -1 where there is none; number of its tasks, 0
where it does not say."""


def is_complete(run: Run, version: int, evaluators: Iterable[Judged]) -> bool:
    """`version`: the newest trusted one; -1 while there is none."""
    if 0 < run.stop.versions <= version:
        return True
    most = run.evaluation.tasks
    found = [shown(accuracy, min(tasks or most, most)) for accuracy, tasks in evaluators]
    return run.stop.accuracy > 0 and bool(found) and median_low(found) >= run.stop.accuracy


def shown(accuracy: float, tasks: int) -> float:
    """The accuracy that an evaluation shows."""
    return intervals.of_share(max(accuracy, 0.0), tasks)[0] if accuracy < 1 else 1.0


def ends(run: Run) -> str:
    """When the run is complete: `at version 400, or once 240 of 256 held-out answers are right (0.9 with
    95 % confidence)`; empty where never."""
    target, tasks = run.stop.accuracy, run.evaluation.tasks
    parts = [f"at version {run.stop.versions}"] if run.stop.versions else []
    if target:
        needed = next(right for right in range(tasks + 1) if shown(right / tasks, tasks) >= target)
        right = f"{needed} of {some(tasks, 'held-out answer')} are right"
        parts.append(f"once {right} ({target:.4g} with 95 % confidence)")
    return ", or ".join(parts)
