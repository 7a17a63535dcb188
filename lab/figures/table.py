"""One line of the table of figures, and the table as text and JSON.

    Figure(row, what, value, unit, against, other)  ->  a ratio, a line of text, a JSON object

A figure has a measurement and, where it makes sense, the baseline measured in the same run: their ratio is
more reliable than either number, since both had the same noise. A row that cannot be measured here is a Gap
with its reason; the other rows are measured.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from statistics import median, quantiles
from typing import Any

import msgspec
from rich.console import Console
from rich.table import Table

from swarm.types import Struct

Say = Callable[[str], None]
"""Takes a line of progress."""

TOO_MANY = "too many"
"""Unit of a count of what should not be: 0 is right on any machine."""

HIGHER = frozenset(
    {
        "groups/s",
        "tokens/s",
        "groups",
        "of wall time",
        "% of their time",
        "% of its tokens",
        "of the rate without it",
    }
)
"""Units of which more is better, beside those that end in `a CPU second` or `an hour`."""

LOWER = frozenset({"s", "s/round", "s/M", "MiB", "MB", "kB/s", "copies'", "CPU", "% of bf16", TOO_MANY})
"""Units of which less is better, or their first words. A bare `%` is none: shares of a loss and of a gain
both begin with it."""


class Unmeasured(Exception):
    """A row cannot be measured here; the message gives the reason and a remedy."""


class Figure(Struct, tag="figure"):
    row: str
    """Name of the row that measured it, as in `swarm bench NAME`."""
    what: str
    value: float
    unit: str
    against: str = ""
    """The baseline; empty when it stands alone."""
    other: float | None = None
    """The other side's value in the same unit."""
    note: str = ""
    """How it was measured, or how it splits."""
    turns: tuple[float, ...] = ()
    """The value of each turn, where it was measured several times: `value` is their median."""
    other_turns: tuple[float, ...] = ()
    """The same of the other side."""
    cpu: float | None = None
    """The value with CPU seconds of all processes that took part in the place of seconds: a side that uses
    more cores gains nothing by that."""
    other_cpu: float | None = None

    @classmethod
    def of_turns(cls, turns: Iterable[float], others: Iterable[float] = (), **rest: Any) -> Figure:
        """The measurements of these turns; `others`: those of the other side, where it took turns too."""
        mine, its = tuple(turns), tuple(others)
        rest |= {"other": median(its)} if its else {}
        return cls(value=median(mine), turns=mine, other_turns=its, **rest)

    @property
    def ratio(self) -> float | None:
        """value / other; None without another side or when that is 0."""
        return self.value / self.other if self.other else None

    @property
    def cpu_ratio(self) -> float | None:
        """cpu / other_cpu; None without one of them."""
        return self.cpu / self.other_cpu if self.cpu is not None and self.other_cpu else None

    @property
    def p95(self) -> float | None:
        """The value that 19 of 20 turns are better than; None below 3 turns, or where the better direction is
        unknown."""
        if len(self.turns) < 3 or self.higher is None:
            return None
        return quantiles(self.turns, n=20, method="inclusive")[0 if self.higher else -1]

    @property
    def higher(self) -> bool | None:
        """Whether more is better; None where the unit does not show it."""
        if self.unit in HIGHER or self.unit.endswith(("a CPU second", "an hour")):
            return True
        return False if LOWER & {self.unit, self.unit.split(" ")[0]} else None


class Gap(Struct, tag="gap"):
    row: str
    why: str


Line = Figure | Gap


class Conditions(Struct):
    """Where and when the figures were taken."""

    cores: int
    load: float
    """Average over the minute before the start: above half a core, others worked here too."""
    seconds: float
    """The whole run."""
    load_after: float = 0.0
    """Average over its last minute: cores that its own processes used, and those of others."""
    processor: str = ""
    commit: str = ""
    """Of the checkout, with a `+` where files were changed."""
    joules: float | None = None
    """Of the processor's packages during the run, by any program; None where the machine does not report
    it."""
    began: str = ""
    """Day and time in UTC, such as `2026-11-30 01:30`."""
    gpus: tuple[str, ...] = ()
    """Name and driver of each, as nvidia-smi has them."""
    packages: dict[str, str] = {}
    """Those of the environment that compute -> their versions."""

    @property
    def noisy(self) -> bool:
        return self.load > 0.5


class Results(Struct):
    """The table as JSON, as `swarm bench --json` prints it."""

    machine: Conditions
    figures: list[Line]


def show(lines: Sequence[Line], machine: Conditions, console: Console) -> None:
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for head, side in (
        ("row", "left"),
        ("figure", "left"),
        ("value", "right"),
        ("against", "left"),
        ("its value", "right"),
        ("ratio", "right"),
        ("p95", "right"),
        ("per CPU s", "right"),
        ("its ratio", "right"),
        ("how", "left"),
    ):
        table.add_column(head, justify=side, overflow="fold")  # type: ignore[arg-type]
    last = ""
    for line in lines:
        name, last = ("" if line.row == last else line.row), line.row
        table.add_row(name, *_cells(line))
    console.print(table, highlight=False, markup=False)
    noise = "; others used this machine: compare ratios, not values" if machine.noisy else ""
    energy = "energy not told here" if machine.joules is None else f"{number(machine.joules)} J"
    console.print(
        f"{machine.cores} cores ({machine.processor or 'unknown'}), load {machine.load:.1f} before the start,"
        f" {machine.load_after:.1f} at the end, {machine.seconds:.0f} s in all, {energy}, commit"
        f" {machine.commit or 'unknown'}{_moment(machine)}{noise}",
        highlight=False,
        markup=False,
    )


def _moment(machine: Conditions) -> str:
    """What the machine had, and when; empty in a table that does not have it."""
    packages = (f"{name} {version}" for name, version in machine.packages.items())
    return "".join(
        f", {text}" for text in (*machine.gpus, *packages, machine.began and f"{machine.began} UTC") if text
    )


def _cells(line: Line) -> tuple[str, ...]:
    if isinstance(line, Gap):
        return ("not measured", *[""] * 7, line.why)
    other, p95, cpu = ("" if each is None else number(each) for each in (line.other, line.p95, line.cpu))
    ratio, of_cpu = ("" if each is None else f"{each:.2f}" for each in (line.ratio, line.cpu_ratio))
    value = f"{number(line.value)} {line.unit}"
    return (line.what, value, line.against, other, ratio, p95, cpu, of_cpu, line.note)


def number(value: float) -> str:
    """Three digits that mean something: 1234, 123, 12.3, 1.23, 0.123, 1.2e-04."""
    for limit, digits in ((100.0, 0), (10.0, 1), (1.0, 2)):
        if abs(value) >= limit:
            return f"{value:.{digits}f}"
    return f"{value:.3f}" if abs(value) >= 1e-3 or not value else f"{value:.1e}"


def as_json(lines: Sequence[Line], machine: Conditions) -> str:
    rows: list[dict[str, Any]] = []
    for line in lines:
        row = msgspec.to_builtins(line)
        told = (
            {"ratio": line.ratio, "cpu_ratio": line.cpu_ratio, "p95": line.p95}
            if isinstance(line, Figure)
            else {}
        )
        rows.append(row | told)
    return msgspec.json.format(
        msgspec.json.encode({"machine": msgspec.to_builtins(machine), "figures": rows})
    ).decode()
