"""Plots of the staleness bench, the counterparts of the paper's: accuracy over versions, and over the delay.

StudyResults --a section's axis is a delay--> curves-*.png (accuracy by version at each delay), delay-*.png,
weights-*.png
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from lab.studies.heat import heat
from lab.studies.staleness.records import (
    FinishedCell,
    StageResults,
    StudyResults,
    by_method,
    pooled,
    spread,
    values,
)
from lab.studies.trainings import EVERY
from peers.commands.journals.drawing import Curve, Panel, lines

MOST = 10
"""Methods in one picture: beyond it colours repeat."""

WIDE = ("weight_var", "grad_norm")
"""Figures that differ by orders of magnitude between methods."""

BY_DELAY = (
    ("last", "last accuracy"),
    ("best", "best accuracy"),
    ("gap", "best to last"),
    ("auc", "area under the curve"),
)
WEIGHTS = (
    ("weight_var", "variance of weights in a group"),
    ("ess", "effective share of a group"),
    ("kl", "KL(sampler‖learner), nats a token"),
    ("grad_norm", "norm of the gradient"),
)


def draw(account: StudyResults, out: Path) -> Mapping[str, Sequence[Path]]:
    """Section -> its pictures."""
    return {section.name: _pictures(section, pooled(account, section), out) for section in account.sections}


def _pictures(section: StageResults, done: Sequence[FinishedCell], out: Path) -> list[Path]:
    if section.axis != "delay" or not done:
        return []
    shown = [one for one in done if one.cell.method in section.methods[:MOST]]
    paths = [
        lines(out / f"curves-{section.name}.png", _accuracy(shown), columns=3),
        lines(out / f"delay-{section.name}.png", _sweeps(shown, BY_DELAY)),
        lines(out / f"weights-{section.name}.png", _sweeps(shown, WEIGHTS)),
    ]
    if len(section.methods) > 2 * MOST:
        paths.append(_all(section, done, out / f"heat-{section.name}.png"))
    return paths


def _accuracy(done: Sequence[FinishedCell]) -> list[Panel]:
    panels = []
    for delay in values(done, "delay"):
        curves = []
        for label in dict.fromkeys(one.cell.method for one in done):
            trainings = [_points(one) for one in done if (one.cell.method, one.cell.delay) == (label, delay)]
            if trainings:
                height = [sum(at) / len(at) for at in zip(*trainings, strict=True)]
                curves.append(Curve(label, [EVERY * i for i in range(len(height))], height))
        panels.append(Panel(f"D = {delay}", "version", "held-out accuracy", curves))
    return panels


def _points(one: FinishedCell) -> list[float]:
    return [float(point) / 1000 for point in str(one.row["curve"]).split()]


def _sweeps(done: Sequence[FinishedCell], figures: Sequence[tuple[str, str]]) -> list[Panel]:
    panels = []
    for name, title in figures:
        curves = _sweep(done, name)
        if name in WIDE:
            # an interval that reaches 0 has no place on a log axis
            curves = [curve._replace(lo=(), hi=()) for curve in curves]
        panels.append(Panel(title, "D, versions", name, curves, log_x=True, log_y=name in WIDE))
    return panels


def _sweep(done: Sequence[FinishedCell], name: str) -> list[Curve]:
    curves = []
    for label, at in by_method(done, "delay", name).items():
        places = sorted(float(place) for place in at)
        found = [spread(list(at[place].values())) for place in places]
        lo, hi = [one.mean - one.half for one in found], [one.mean + one.half for one in found]
        curves.append(Curve(label, places, [one.mean for one in found], lo, hi))
    return curves


def _all(section: StageResults, done: Sequence[FinishedCell], path: Path) -> Path:
    """1 - auc of every method at every delay, NaN where it was not trained; the best available mean first."""
    delays = values(done, "delay")
    areas = {
        label: [1 - spread(list(at[delay].values())).mean if delay in at else math.nan for delay in delays]
        for label, at in by_method(done, "delay", "auc").items()
    }
    ranked = sorted(areas, key=lambda label: _mean(areas[label]))
    heights = [areas[label] for label in ranked]
    return heat(path, "1 - area under the curve, by D", ranked, [str(delay) for delay in delays], heights)


def _mean(heights: Sequence[float]) -> float:
    """Of those that are numbers; infinite where none is."""
    there = [height for height in heights if math.isfinite(height)]
    return sum(there) / len(there) if there else math.inf
