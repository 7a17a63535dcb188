"""Results of the staleness study, and the figures that its report and its pictures share.

    FinishedCell (a cell and its row) --> StageResults (a stage's trainings) --> StudyResults (the study)
    StageResults --pooled, by_method, by_place--> figures by method, axis and seed --spread--> Interval

Invariant: nothing here is read from a disk or written to one. Not handled: text and tables
(lab.studies.staleness.report), pictures (lab.studies.staleness.curves).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from lab.studies.experiments import Row
from lab.studies.intervals import student
from lab.studies.trainings import Cell

BASE: dict[str, float | str] = {"law": "lognormal", "kl": 0.0, "way": "upload"}
"""A section's fixed values besides domain and delay, unless one is its axis."""

COLLAPSED = 0.5
"""A training whose last accuracy is below this part of its best one has collapsed."""


class FinishedCell(NamedTuple):
    cell: Cell
    row: Row

    def figure(self, name: str) -> float:
        return float(self.row[name])


class StageResults(NamedTuple):
    """The trainings of one stage of the plan."""

    name: str
    axis: str
    domain: str
    methods: Sequence[str]
    asked: int
    """Trainings that the plan has here."""
    done: Sequence[FinishedCell]


class StudyResults(NamedTuple):
    command: str
    seeds: Sequence[int]
    search: Sequence[int]
    middle: int
    searched: Sequence[FinishedCell]
    rates: Mapping[tuple[str, str], float]
    sections: Sequence[StageResults]


class Interval(NamedTuple):
    mean: float
    half: float
    """Half-width of the 95 % interval; NaN for a single value."""


def spread(values: Sequence[float]) -> Interval:
    """NaN among the values makes NaN."""
    n = len(values)
    if n < 2:
        return Interval(values[0] if values else math.nan, math.nan)
    mean = math.fsum(values) / n
    return Interval(
        mean, student(n - 1) * statistics.stdev(values) / math.sqrt(n) if math.isfinite(mean) else math.nan
    )


def pooled(account: StudyResults, section: StageResults) -> list[FinishedCell]:
    """A section's trainings, and those of other sections that are its axis' own value: the laws beside the
    log-normal one."""
    held = {**BASE, "domain": section.domain, "delay": account.middle}
    held.pop(section.axis)
    found = {
        one.cell: one
        for other in account.sections
        for one in other.done
        if one.cell.method in section.methods
        and all(getattr(one.cell, name) == value for name, value in held.items())
    }
    return list(found.values())


def by_method(
    done: Iterable[FinishedCell], axis: str, name: str
) -> dict[str, dict[float | str, dict[int, float]]]:
    """Method -> value of the axis -> seed -> the figure of that name."""
    found: dict[str, dict[float | str, dict[int, float]]] = {}
    for one in done:
        found.setdefault(one.cell.method, {}).setdefault(getattr(one.cell, axis), {})[one.cell.seed] = (
            one.figure(name)
        )
    return found


def values(done: Iterable[FinishedCell], axis: str) -> list[float | str]:
    """Of the axis, numbers in their order and names in that of their first sight."""
    found = list(dict.fromkeys(getattr(one.cell, axis) for one in done))
    return found if any(isinstance(value, str) for value in found) else sorted(found)


def collapsed(one: FinishedCell) -> bool:
    return not one.figure("last") >= COLLAPSED * one.figure("best")


def by_place(done: Sequence[FinishedCell], axis: str, name: str) -> dict[float | str, list[float]]:
    """Value of the axis -> the figure of that name, of all methods and seeds."""
    found: dict[float | str, list[float]] = {place: [] for place in values(done, axis)}
    for one in done:
        found[getattr(one.cell, axis)].append(one.figure(name))
    return found
