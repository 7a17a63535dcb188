"""Figures of a run by version, from the events that a peer hears.

    Trained of every learner of a version --mean by groups--> train/..., seconds/...
    Evaluated                             ------------------> eval/accuracy

A version's figures are whole once a later one is trained; what its learners say after that is left out, and
so is what a part of a swarm that was cut off trained beside them.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping

from swarm.events import Evaluated, Event, Trained

PHASES = ("gather", "learn", "average", "step")

Figures = Mapping[str, float]


class RunFigures:
    def __init__(self) -> None:
        self._version = -1
        """What `_learners` trained."""
        self._learners: list[Trained] = []

    def take(self, event: Event) -> Iterator[tuple[int, Figures]]:
        """Take an event in the order of arrival; yields (version, its figures) of what is whole now."""
        if isinstance(event, Evaluated):
            yield event.version, {"eval/accuracy": event.accuracy}
        if not isinstance(event, Trained) or event.version < self._version:
            return
        if event.version > self._version:
            yield from self.rest()
            self._version = event.version
        self._learners.append(event)

    def rest(self) -> Iterator[tuple[int, Figures]]:
        """The newest version's, as far as its learners were heard."""
        if self._learners:
            yield self._version, _mean(self._learners)
        self._learners = []


def _mean(learners: list[Trained]) -> Figures:
    sums: dict[str, float] = defaultdict(float)
    weights: dict[str, float] = defaultdict(float)
    for one in learners:
        weight = max(one.groups, 1)
        named = {f"train/{name}": value for name, value in one.metrics.items()}
        for name, value in (named | {f"seconds/{phase}": getattr(one, phase) for phase in PHASES}).items():
            sums[name] += value * weight
            weights[name] += weight
    means = {name: total / weights[name] for name, total in sums.items()}
    whole = {"train/groups": sum(one.groups for one in learners), "train/learners": len(learners)}
    return means | {name: float(value) for name, value in whole.items()}


def quantile(histogram: Mapping[int, int], share: float) -> float:
    """The smallest value that at least this share of what was counted does not exceed; not a number where
    nothing was. `histogram`: value -> how often."""
    left = share * sum(histogram.values())
    for value, count in sorted(histogram.items()):
        left -= count
        if left <= 0:
            return value
    return math.nan
