"""The last evaluation, with its intervals."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Protocol

import msgspec

from dashboard.text import Measured, number, whole
from dashboard.views import EstimateView, EvaluationView, JudgedView
from swarm import events as happened
from swarm.core import intervals
from swarm.settings.sections import SET_NAME
from swarm.types import SETS

_SAMPLED = re.compile(r"(mean|pass)@[0-9]{1,4}")
MOST = 16
"""Estimates of one evaluation."""


class Evaluations(msgspec.Struct):
    last: EvaluationView | None = None
    """That of the newest version."""

    def take(self, event: happened.Evaluated) -> EvaluationView:
        """The event as it is shown."""
        found = view(event)
        if self.last is None or found.version >= self.last.version:
            self.last = found
        return found

    def sanitize(self) -> None:
        """Clip a part from a snapshot to the bounds that a fold keeps."""
        if (last := self.last) is not None:
            self.last = view(last)


class _Judged(Protocol):
    """Answers to some tasks, in an event or a view."""

    @property
    def accuracy(self) -> float: ...
    @property
    def tasks(self) -> float: ...
    @property
    def sampled(self) -> Mapping[str, Measured]: ...


class _Evaluated(_Judged, Protocol):
    @property
    def version(self) -> float: ...
    @property
    def sets(self) -> Mapping[str, _Judged]: ...


def curve(name: str) -> str:
    """The name of an estimate's curve: `mean_at_8`."""
    return name.replace("@", "_at_")


def set_curve(name: str) -> str:
    """The name of the curve of an evaluation set's accuracy."""
    return f"set_{name}"


def view(event: _Evaluated) -> EvaluationView:
    """An evaluation as it is shown, of an event or of a view from elsewhere."""
    names = [name for name in event.sets if re.fullmatch(SET_NAME, name)]
    mine = _judged(event)
    return EvaluationView(
        version=whole(event.version),
        accuracy=mine.accuracy,
        low=mine.low,
        high=mine.high,
        tasks=mine.tasks,
        sampled=mine.sampled,
        sets={name: _judged(event.sets[name]) for name in names[:SETS]},
    )


def _judged(one: _Judged) -> JudgedView:
    share, count = float(number(one.accuracy, high=1.0)), whole(one.tasks)
    low, high = intervals.of_share(share, count)
    names = [name for name in one.sampled if _SAMPLED.fullmatch(name)]
    return JudgedView(
        accuracy=share,
        low=low,
        high=high,
        tasks=count,
        sampled={name: _estimate(one.sampled[name]) for name in names[:MOST]},
    )


def _estimate(one: Measured) -> EstimateView:
    value, low, high = (float(number(each, high=1.0)) for each in (one.value, one.low, one.high))
    return EstimateView(value=value, low=low, high=high)
