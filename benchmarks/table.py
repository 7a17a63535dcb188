"""One line of the table of figures, and the table as text and JSON.

    Figure(row, what, value, unit, against, other)  ->  a ratio, a line of text, a JSON object

A figure has what was measured and, where it makes sense, the baseline measured in the same run: their ratio
is more reliable than either number, since both had the same noise. A row that cannot be measured here is a
Gap with its reason; the other rows are measured.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from rich.console import Console
from rich.table import Table

from swarm.types import Struct


class Unmeasured(Exception):
    """A row cannot be measured here; the message says why and what would help."""


class Figure(Struct, tag="figure"):
    row: str
    """Name of the row that measured it, as in `swarm bench NAME`."""
    what: str
    value: float
    unit: str
    against: str = ""
    """What it was compared with; empty when it stands alone."""
    other: float | None = None
    """The other side's value in the same unit."""
    note: str = ""
    """How it was measured, or how it splits."""

    @property
    def ratio(self) -> float | None:
        """value / other; None without another side or when that is 0."""
        return self.value / self.other if self.other else None


class Gap(Struct, tag="gap"):
    row: str
    why: str


Line = Figure | Gap


class Machine(Struct):
    """Where and when the figures were taken."""

    cores: int
    load: float
    """Average over the minute before the start: above half a core, others worked here too."""
    seconds: float
    """The whole run."""

    @property
    def noisy(self) -> bool:
        return self.load > 0.5


def show(lines: Sequence[Line], machine: Machine, console: Console) -> None:
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for head, side in (
        ("row", "left"),
        ("figure", "left"),
        ("value", "right"),
        ("against", "left"),
        ("its value", "right"),
        ("ratio", "right"),
        ("how", "left"),
    ):
        table.add_column(head, justify=side, overflow="fold")  # type: ignore[arg-type]
    last = ""
    for line in lines:
        name, last = ("" if line.row == last else line.row), line.row
        table.add_row(name, *_cells(line))
    console.print(table, highlight=False, markup=False)
    noise = "; others used this machine: compare ratios, not values" if machine.noisy else ""
    console.print(
        f"{machine.cores} cores, load {machine.load:.1f} before the start, {machine.seconds:.0f} s in"
        f" all{noise}",
        highlight=False,
        markup=False,
    )


def _cells(line: Line) -> tuple[str, ...]:
    if isinstance(line, Gap):
        return ("not measured", "", "", "", "", line.why)
    other = "" if line.other is None else number(line.other)
    ratio = "" if line.ratio is None else f"{line.ratio:.2f}"
    return (line.what, f"{number(line.value)} {line.unit}", line.against, other, ratio, line.note)


def number(value: float) -> str:
    """Three digits that mean something: 1234, 123, 12.3, 1.23, 0.123, 1.2e-04."""
    for limit, digits in ((100.0, 0), (10.0, 1), (1.0, 2)):
        if abs(value) >= limit:
            return f"{value:.{digits}f}"
    return f"{value:.3f}" if abs(value) >= 1e-3 or not value else f"{value:.1e}"


def as_json(lines: Sequence[Line], machine: Machine) -> str:
    rows: list[dict[str, Any]] = []
    for line in lines:
        row = msgspec.to_builtins(line)
        rows.append(row | {"ratio": line.ratio} if isinstance(line, Figure) else row)
    return msgspec.json.format(
        msgspec.json.encode({"machine": msgspec.to_builtins(machine), "figures": rows})
    ).decode()
