"""Figures of a run by version, from the events that a peer receives.

    Trained of every learner of a version --mean by groups--> train/..., seconds/...
    Evaluated                             ------------------> eval/accuracy, eval/mean@8, eval/pass@8
      on an evaluation set `hard`                               eval/hard/accuracy, eval/hard/mean@8

A version's figures are complete once a later one is trained; later reports of its learners are left out, and
so are those from a part of the swarm that was cut off.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping

from swarm.events import Evaluated, Event, SetResult, Trained

PHASES = ("gather", "learn", "average", "step")

Figures = Mapping[str, float]


class RunFigures:
    def __init__(self) -> None:
        self._version = -1
        """What `_learners` trained."""
        self._learners: list[Trained] = []

    def take(self, event: Event) -> Iterator[tuple[int, Figures]]:
        """Process an event in the order of arrival; yields (version, its figures) for versions that are
        complete now."""
        if isinstance(event, Evaluated):
            figures = _judged("eval", event)
            for name, one in event.sets.items():
                figures |= _judged(f"eval/{name}", one)
            yield event.version, figures
        if not isinstance(event, Trained) or event.version < self._version:
            return
        if event.version > self._version:
            yield from self.rest()
            self._version = event.version
        self._learners.append(event)

    def rest(self) -> Iterator[tuple[int, Figures]]:
        """The newest version's, as far as its learners reported."""
        if self._learners:
            yield self._version, _mean(self._learners)
        self._learners = []


def _judged(under: str, one: Evaluated | SetResult) -> dict[str, float]:
    sampled = {f"{under}/{name}": estimate.value for name, estimate in one.sampled.items()}
    return {f"{under}/accuracy": one.accuracy} | sampled


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
    """The smallest value that at least this share of the counts does not exceed; NaN without counts.
    `histogram`: value -> count."""
    left = share * sum(histogram.values())
    for value, count in sorted(histogram.items()):
        left -= count
        if left <= 0:
            return value
    return math.nan
