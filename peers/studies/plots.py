"""Plots of the studies: one style, few lines a picture, files small enough to commit.

    Panel (curves with intervals) --lines--> PNG, SVG        a table of numbers --heat--> PNG

matplotlib is imported when something is drawn, with a canvas that needs no screen. A label has the same
colour in all pictures. Not handled here: what to show.
"""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from peers.studies.gradient_report import NAMED, MethodRecord, most_settings, named, ranked
from swarm.storage.durable import write_durably

DPI = 100
"""Dots an inch: sharp enough on a page, and a picture stays below 100 kB."""

COLOURS = (
    "#1b6ca8",
    "#d1495b",
    "#2e933c",
    "#8d6a9f",
    "#e08e00",
    "#3a3a3a",
    "#00a6a6",
    "#9c5b2e",
    "#c44ca8",
    "#7a8b00",
)
MARKS = "osD^vP*X<>"
MARKED = 40
"""Points of a curve that have marks: those of more hide the line."""


class Curve(NamedTuple):
    label: str
    x: Sequence[float]
    y: Sequence[float]
    lo: Sequence[float] = ()
    """Ends of the interval of each point, or none."""
    hi: Sequence[float] = ()


class Panel(NamedTuple):
    title: str
    x: str
    y: str
    curves: Sequence[Curve]
    log_x: bool = False
    """Each x at the same distance from the next, as fits a sweep that goes 0, 0.01, 0.03, 0.1."""
    log_y: bool = False
    """Where a value above 0 is there to stand on such an axis."""
    from_zero: bool = False
    """The y axis begins at 0."""


def lines(path: Path, panels: Sequence[Panel], columns: int = 2) -> Path:
    """Panels side by side, `columns` a row, with one legend below; curves of one label look alike in all of
    them."""
    columns = min(columns, len(panels))
    rows = math.ceil(len(panels) / columns)
    figure = _figure(5.2 * columns, 3.6 * rows + 0.6)
    labels = list(dict.fromkeys(curve.label for panel in panels for curve in panel.curves))
    handles: dict[str, Any] = {}
    for i, panel in enumerate(panels):
        axes = figure.add_subplot(rows, columns, i + 1)
        places = sorted({x for curve in panel.curves for x in curve.x})
        for curve in panel.curves:
            handles[curve.label] = _draw(
                axes, curve, labels.index(curve.label), places if panel.log_x else None
            )
        if panel.log_x:
            axes.set_xticks(range(len(places)), [f"{place:g}" for place in places])
        if panel.log_y and any(0 < y < math.inf for curve in panel.curves for y in curve.y):
            axes.set_yscale("log")
        if panel.from_zero:
            axes.set_ylim(bottom=0)
        axes.set(title=panel.title, xlabel=panel.x, ylabel=panel.y)
    figure.legend(
        [handles[label] for label in labels], labels, loc="outside lower center", ncols=5, frameon=False
    )
    return _save(figure, path)


def heat(
    path: Path, title: str, rows: Sequence[str], columns: Sequence[str], values: Sequence[Sequence[float]]
) -> Path:
    """A table of numbers in [0, 1] whose colours go from good (0, pale) to bad (1, dark); NaN is an empty
    square."""
    figure = _figure(1.9 + 0.72 * len(columns), 1.0 + 0.2 * len(rows))
    axes = figure.add_subplot()
    axes.grid(visible=False)
    axes.imshow(values, aspect="auto", cmap="YlGnBu", vmin=0, vmax=1)
    axes.set_xticks(range(len(columns)), columns)
    axes.set_yticks(range(len(rows)), rows)
    axes.tick_params(top=True, labeltop=True, length=0)
    for i, row in enumerate(values):
        for j, value in enumerate(row):
            if math.isnan(value):
                continue
            axes.text(
                j,
                i,
                f"{value:.2f}",
                ha="center",
                va="center",
                size=7,
                color="white" if value > 0.6 else "black",
            )
    axes.set_title(title)
    return _save(figure, path)


def _figure(width: float, height: float) -> Any:
    import matplotlib

    matplotlib.rcParams.update(
        {
            "font.size": 9,
            "axes.spines.top": False,
            "axes.spines.right": False,
            "axes.grid": True,
            "grid.alpha": 0.25,
            "axes.titlesize": 10,
            "lines.markersize": 4,
            "lines.linewidth": 1.4,
        }
    )
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), dpi=DPI, layout="constrained")


def _draw(axes: Any, curve: Curve, number: int, places: Sequence[float] | None) -> Any:
    """Intervals are bars, each label's a little beside the others', because bands hide one another."""
    aside = 0.04 * ((number + 1) // 2) * (-1) ** number
    at = [places.index(x) + aside for x in curve.x] if places else list(curve.x)
    colour = COLOURS[number % len(COLOURS)]
    mark = MARKS[number % len(MARKS)] if len(at) <= MARKED else None
    (handle,) = axes.plot(at, curve.y, color=colour, marker=mark)
    if len(curve.lo):
        axes.vlines(at, curve.lo, curve.hi, color=colour, alpha=0.45, linewidth=1)
    return handle


def _save(figure: Any, path: Path) -> Path:
    """As an SVG, or as a PNG of 128 colours, a third of the size; without the version of matplotlib, which is
    no part of a picture."""
    from PIL import Image

    full, small = io.BytesIO(), io.BytesIO()
    if path.suffix == ".svg":
        figure.savefig(small, format="svg", metadata={"Date": None, "Creator": None})
    else:
        figure.savefig(full, format="png")
        Image.open(full).convert("RGB").quantize(128).save(small, "PNG", optimize=True)
    write_durably(path, small.getvalue())
    return path


# --- the gradient lab ---------------------------------------------------------------------------------------

KL = "KL(q‖p), nats a token"


def gradient(records: Sequence[MethodRecord], out: Path) -> list[Path]:
    """All pictures of the bias-variance lab; those whose sweep was not measured are left out."""
    group, horizon = most_settings(records)
    at_kl = [r for r in records if (r.setting.group, r.setting.horizon) == (group, horizon)]
    shown = [record for record in at_kl if record.label in named(records)]
    fixed = f"G = {group}, horizon {horizon}"
    whole = [("mse_32", "error of 32 groups", False), ("cosine_32", "cosine of 32 groups with g*", False)]
    parts = [("cosine", "cosine of the mean with g*", False), ("bias2", "squared bias", False)]
    parts += [
        ("snr", "signal to noise of one group", True),
        ("zero", "share of completions without weight", False),
    ]
    paths = [
        lines(
            out / "error.png",
            [_panel(shown, "kl", name, f"{text}, {fixed}", log) for name, text, log in whole],
        ),
        lines(
            out / "bias-variance.png",
            [_panel(shown, "kl", name, f"{text}, {fixed}", log) for name, text, log in parts],
        ),
        _all(at_kl, out / "all.png"),
    ]
    sizes = [r for r in records if r.label in named(records) and r.setting.horizon == horizon]
    depths = [r for r in records if r.label in named(records) and r.setting.group == group]
    panels = [*_sweeps(sizes, "group", "group size G"), *_sweeps(depths, "horizon", "horizon, tokens")]
    if panels:
        paths.append(lines(out / "group-horizon.png", panels, columns=max(2, math.ceil(len(panels) / 2))))
    scored = sorted({record.label.partition("/")[0] for record in at_kl if "/score=" in record.label})
    if scored:
        paths.append(_scores(at_kl, scored, out / "score.png"))
    return paths


def _panel(records: Sequence[MethodRecord], over: str, name: str, title: str, log_y: bool = False) -> Panel:
    curves = []
    for label in dict.fromkeys(record.label for record in records):
        mine = sorted((r for r in records if r.label == label), key=lambda r: getattr(r.setting, over))
        mean, lo, hi = zip(*(r.values[name] for r in mine), strict=True)
        curves.append(Curve(label, [getattr(r.setting, over) for r in mine], mean, lo, hi))
    return Panel(title, KL if over == "kl" else over, name, curves, True, log_y)


def _sweeps(records: Sequence[MethodRecord], over: str, axis: str) -> list[Panel]:
    """mse_32 over `group` or `horizon`, a panel for each kl of which more than one size was measured."""
    panels = []
    for kl in sorted({record.setting.kl for record in records}):
        here = [record for record in records if record.setting.kl == kl]
        if len({getattr(record.setting, over) for record in here}) > 1:
            panels.append(
                _panel(here, over, "mse_32", f"error of 32 groups at {kl:g} nats a token")._replace(x=axis)
            )
    return panels


def _all(records: Sequence[MethodRecord], path: Path) -> Path:
    table = ranked(records)
    kls = sorted({record.setting.kl for record in records})
    values = [[at[kl].values["mse_32"][0] for kl in kls] for at in table.values()]
    return heat(path, f"error of 32 groups (mse_32) by {KL}", list(table), [f"{kl:g}" for kl in kls], values)


def _scores(records: Sequence[MethodRecord], names: Sequence[str], path: Path) -> Path:
    """A panel for each of the first nine methods whose score makes a difference: with its own and with the
    other."""
    panels = []
    for name in sorted(names, key=lambda name: (name not in NAMED, name))[:9]:
        mine = [
            record for record in records if record.label == name or record.label.startswith(f"{name}/score=")
        ]
        panel = _panel(mine, "kl", "mse_32", name)
        curves = [
            curve._replace(label="the other score" if "/" in curve.label else "own score")
            for curve in panel.curves
        ]
        panels.append(panel._replace(curves=curves))
    return lines(path, panels, columns=3)
