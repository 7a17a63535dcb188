"""Pictures of curves: one style, few lines a picture, files small enough to commit.

    Panel (curves with intervals) --lines--> PNG, SVG

matplotlib is imported when something is drawn, with a canvas that needs no screen. A label has the same
colour in all pictures. Not handled here: what to show.
"""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from swarm.storage.durable import write_durably

DPI = 100
"""Dots an inch: sharp in a document, and a picture stays below 100 kB."""

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
    """A logarithmic axis, if any value is above 0."""
    from_zero: bool = False
    """The y axis begins at 0."""


def lines(path: Path, panels: Sequence[Panel], columns: int = 2) -> Path:
    """Panels side by side, `columns` a row, with one legend below; curves of one label look alike in all of
    them."""
    columns = min(columns, len(panels))
    rows = math.ceil(len(panels) / columns)
    figure = canvas(5.2 * columns, 3.6 * rows + 0.6)
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
    return save(figure, path)


def canvas(width: float, height: float) -> Any:
    """A figure of matplotlib in this style, `width` by `height` inches."""
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


def save(figure: Any, path: Path) -> Path:
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
