"""A table of numbers as a picture of coloured squares."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from peers.commands.journals.drawing import canvas, save


def heat(
    path: Path, title: str, rows: Sequence[str], columns: Sequence[str], values: Sequence[Sequence[float]]
) -> Path:
    """A table of numbers in [0, 1] whose colours go from good (0, pale) to bad (1, dark); NaN is an empty
    square."""
    figure = canvas(1.9 + 0.72 * len(columns), 1.0 + 0.2 * len(rows))
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
    return save(figure, path)
