"""The last evaluation, with its intervals."""

from __future__ import annotations

import re
from collections.abc import Mapping

import msgspec

from dashboard.text import Measured, number, whole
from dashboard.views import EstimateView, EvaluationView
from swarm import events as happened
from swarm.core import intervals

_SAMPLED = re.compile(r"(mean|pass)@[0-9]{1,4}")
MOST = 16
"""Estimates of one evaluation."""


class Evaluations(msgspec.Struct):
    last: EvaluationView | None = None
    """That of the newest version."""

    def take(self, event: happened.Evaluated) -> EvaluationView:
        """The event as it is shown."""
        found = _view(event.version, event.accuracy, event.tasks, event.sampled)
        if self.last is None or found.version >= self.last.version:
            self.last = found
        return found

    def sanitize(self) -> None:
        """Clip a part from a snapshot to the bounds that a fold keeps."""
        if (last := self.last) is not None:
            self.last = _view(last.version, last.accuracy, last.tasks, last.sampled)


def curve(name: str) -> str:
    """The name of an estimate's curve: `mean_at_8`."""
    return name.replace("@", "_at_")


def _view(version: float, accuracy: float, tasks: float, sampled: Mapping[str, Measured]) -> EvaluationView:
    share, count = float(number(accuracy, high=1.0)), whole(tasks)
    low, high = intervals.of_share(share, count)
    names = [name for name in sampled if _SAMPLED.fullmatch(name)]
    return EvaluationView(
        version=whole(version),
        accuracy=share,
        low=low,
        high=high,
        tasks=count,
        sampled={name: _estimate(sampled[name]) for name in names[:MOST]},
    )


def _estimate(one: Measured) -> EstimateView:
    value, low, high = (float(number(each, high=1.0)) for each in (one.value, one.low, one.high))
    return EstimateView(value=value, low=low, high=high)
