"""Row `refill`: trainings whose batches are filled by signal, against the same with all groups as they come.

    run.batch.refill = "signal" | "off", on three tasks, SEEDS each: the staleness study's trainings at lag
    4.5, with the learning rate that the study found best for `gepo`

Both have the same first policy, exercises, delays, and groups a version. By signal a version costs more
sampled tokens: so the accuracy is told at equal versions and, beside it, the tokens that were sampled for
them, and the part of the trained groups that went through the model. Not handled here: what an objective
makes of it (docs/objectives.md).
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean, stdev

from msgspec import structs

from lab.figures.table import Figure, Line, Say
from lab.studies import trainings
from lab.studies.intervals import student
from lab.studies.trainings import EVERY, Cell
from swarm.events import Evaluated, Event, Sampled, Trained

DOMAINS = ("digit-sums", "sorting", "brackets")
SEEDS, VERSIONS = (1, 2, 3, 4, 5), 100
DELAY, RATE = 16, 8e-4


class RefillCurve:
    """A fold of one training's events."""

    def __init__(self) -> None:
        self.accuracy: dict[int, float] = {}
        """Version -> held out."""
        self.sampled = 0
        """Tokens."""
        self.flat: list[float] = []
        """Share of flat groups among those that came for each version."""

    def __call__(self, event: Event) -> None:
        match event:
            case Evaluated():
                self.accuracy[event.version] = event.accuracy
            case Sampled():
                self.sampled += event.tokens
            case Trained():
                self.flat.append(event.metrics["flat"])

    @property
    def area(self) -> float:
        """Mean accuracy over the versions."""
        return fmean(self.accuracy.values())


def measure(
    say: Say, seeds: Sequence[int] = SEEDS, versions: int = VERSIONS, domains: Sequence[str] = DOMAINS
) -> list[Line]:
    lines: list[Line] = []
    for domain in domains:
        off, signal = (
            [train(say, domain, refill, seed, versions) for seed in seeds] for refill in ("off", "signal")
        )
        gains = [one.area - other.area for one, other in zip(signal, off, strict=True)]
        within = student(len(gains) - 1) * stdev(gains) / len(gains) ** 0.5 if len(gains) > 1 else 0.0
        spread = f"{fmean(gains):+.3f} ± {within:.3f} over {len(seeds)} seeds"
        heights = f"{_heights(signal)} against {_heights(off)}"
        lines.append(
            _figure(
                f"mean accuracy over {versions} versions, {domain}",
                fmean(one.area for one in signal),
                fmean(one.area for one in off),
                f"difference {spread}; at versions {_points(signal[0])}: {heights}",
            )
        )
        lines.append(
            _figure(
                f"tokens sampled for them, {domain}",
                fmean(one.sampled for one in signal),
                fmean(one.sampled for one in off),
                f"flat are {_flat(signal):.0%} of the groups that came against {_flat(off):.0%}",
            )
        )
    return lines


def train(say: Say, domain: str, refill: str, seed: int, versions: int) -> RefillCurve:
    """One training, from the first policy to the last version."""
    say(f"{domain}, refill {refill}, seed {seed}")
    cell, curve = Cell.of(domain, "gepo", DELAY, RATE, seed, versions), RefillCurve()
    played = trainings.scenario(cell)
    run = structs.replace(played.run, batch=structs.replace(played.run.batch, refill=refill))
    # by signal a version takes up to five times as many groups
    trainings.play(cell, structs.replace(played, run=run, hours=5 * played.hours), curve)
    return curve


def _figure(what: str, signal: float, off: float, note: str) -> Figure:
    against = "all groups as they come"
    return Figure(row="refill", what=what, value=signal, unit="", against=against, other=off, note=note)


def _shown(curve: RefillCurve) -> list[int]:
    return [version for version in sorted(curve.accuracy) if version % (2 * EVERY) == 0]


def _points(curve: RefillCurve) -> str:
    return ", ".join(map(str, _shown(curve)))


def _heights(curves: Sequence[RefillCurve]) -> str:
    """Mean accuracy at each of these versions."""
    versions = _shown(curves[0])
    return " ".join(f"{fmean(curve.accuracy[version] for curve in curves):.2f}" for version in versions)


def _flat(curves: Sequence[RefillCurve]) -> float:
    return fmean(fmean(curve.flat) for curve in curves)
