"""Rows of cheats and lies, grouped for a table: with peers that defend themselves and without."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from statistics import fmean
from typing import Protocol, TypeVar

from lab.studies.experiments import Row


class DefendedCell(Protocol):
    """A cell of a study."""

    @property
    def defended(self) -> bool: ...


Cell = TypeVar("Cell", bound=DefendedCell)


def each(
    done: Sequence[tuple[Cell, Row]], name: Callable[[Cell], str]
) -> Iterator[tuple[str, list[Row], list[Row]]]:
    """Each attack, its rows where the peers defend themselves, and where they believe everything."""
    for attack in dict.fromkeys(name(cell) for cell, _ in done):
        own = [(cell.defended, row) for cell, row in done if name(cell) == attack]
        defended, believing = ([row for is_, row in own if is_ is how] for how in (True, False))
        yield attack, defended, believing


def mean(rows: Sequence[Row], figure: str) -> float:
    return fmean(float(row[figure]) for row in rows) if rows else math.nan
