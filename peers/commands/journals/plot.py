"""`swarm plot`: runs side by side in one picture, from their journals.

    journal of a seed or an observer --RunFigures--> version, hours, tokens; accuracies, reward, lag, KL

Not handled here: what a version's figures are (peers.runtime.watching.run_figures), how lines look (drawing).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from peers.commands.journals import drawing
from peers.commands.journals.dashboard import journal_in, run_of
from peers.commands.journals.drawing import Curve, Panel
from peers.commands.journals.journals import read_to_the_end
from peers.errors import WrongUsage, say
from peers.runtime.watching.run_figures import RunFigures
from swarm.events import Trained

EVALUATED, RIGHT = "eval/", "share of right answers"
"""Beginning of the names of an evaluation's figures, and their unit."""

PANELS: Mapping[str, tuple[str, str]] = {
    "eval/accuracy": ("held-out accuracy", RIGHT),
    "train/reward": ("reward", "mean of a batch"),
    "train/lag_versions": ("lag of what is trained on", "versions"),
    "train/kl": ("KL(sampler‖learner)", "nats a token"),
}
"""Figure -> title and unit; those of an evaluation beside the accuracy are named after themselves."""

AXES = {"version": "version", "hours": "hours since the first version", "tokens": "million tokens trained on"}

KINDS = (".png", ".svg")


class Plotted(NamedTuple):
    """One run."""

    label: str
    figures: Mapping[str, Mapping[int, float]]
    """Name -> version -> value."""
    hours: Mapping[int, float]
    """Version -> hours since the first one was trained."""
    group: int | None
    """Completions of a group; None for a journal without its run's folder."""

    def x(self, axis: str) -> Mapping[int, float]:
        """Version -> where it stands on the axis. Raises WrongUsage where that is not known."""
        if axis == "version":
            return {version: float(version) for each in self.figures.values() for version in each}
        if axis == "hours":
            return {0: 0.0, **self.hours}
        if self.group is None:
            raise WrongUsage(
                f"{self.label} lies outside of a run's folder, which says how large its groups are"
            )
        groups, length = (self.figures.get(f"train/{name}", {}) for name in ("groups", "length"))
        spent, at = 0.0, {0: 0.0}
        for version in sorted(groups):
            spent += groups[version] * self.group * length.get(version, 0.0) / 1e6
            at[version] = spent
        return at


def main(paths: Sequence[Path], axis: str, out: Path) -> int:
    """Draw all runs over `axis` into `out`, a PNG or an SVG. Raises WrongUsage."""
    if out.suffix not in KINDS:
        raise WrongUsage(f"{out} is neither a .png nor a .svg")
    runs = [_read(path) for path in paths]
    twice = [label for label, count in Counter(run.label for run in runs).items() if count > 1]
    if twice:
        runs = [run._replace(label=f"{run.label} ({path})") for run, path in zip(runs, paths, strict=True)]
    found = sorted({name for run in runs for name in run.figures if name.startswith(EVALUATED)})
    shown = {name: (_title(name.removeprefix(EVALUATED)), RIGHT) for name in found} | {**PANELS}
    panels = [
        Panel(title, AXES[axis], unit, [_curve(run, name, axis) for run in runs if name in run.figures])
        for name, (title, unit) in shown.items()
        if any(name in run.figures for run in runs)
    ]
    if not panels:
        raise WrongUsage("no version was trained in these runs: there is nothing to draw")
    several = f"{len(runs)} runs" if len(runs) > 1 else runs[0].label
    say(f"{', '.join(panel.title for panel in panels)} of {several}: {drawing.lines(out, panels)}")
    return 0


def _title(name: str) -> str:
    """Of an evaluation's figure, or of an evaluation set's: `hard/mean@8`."""
    name, _, figure = name.rpartition("/")
    return f"{name or 'held out'}, {figure}"


def _read(path: Path) -> Plotted:
    journal = journal_in(path)
    run, reader = run_of(journal), RunFigures()
    figures: dict[str, dict[int, float]] = {}
    times: dict[int, float] = {}

    def add(version: int, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            figures.setdefault(name, {})[version] = value

    for event in read_to_the_end(journal):
        if isinstance(event, Trained):
            times.setdefault(event.version, event.at)
        for version, values in reader.take(event):
            add(version, values)
    for version, values in reader.rest():
        add(version, values)
    began = min(times.values(), default=0.0)
    hours = {version: (at - began) / 3600 for version, at in times.items()}
    label = run.name if run is not None else journal.name
    return Plotted(label, figures, hours, run.sampling.group_size if run is not None else None)


def _curve(run: Plotted, name: str, axis: str) -> Curve:
    at = run.x(axis)
    points = sorted((at[version], value) for version, value in run.figures[name].items() if version in at)
    return Curve(run.label, [x for x, _ in points], [y for _, y in points])
