"""The staleness bench, `swarm bench staleness`: every method trained by the real roles under controlled
delays.

    stage by stage, by importance:
        search  rates x search seeds at the middle delay
                --> the rate of each (method, domain), by area under the curve
        grid    methods x values of the stage's axis x held-out seeds, at those rates
                --ledger, all cores--> rows
        report  cells.csv, *.png, report.md of all that is done so far

All methods have the same grid of rates, the same tasks, delays and first policy; seeds of the search occur
nowhere else. A stage varies one axis around one setting, so that stages share cells, and each is complete by
itself. Invariant: a plan that is interrupted, or out of minutes, continues where it stopped and ends at the
same bytes. Not handled: cells (trainings), the meaning of rows (report).
"""

from __future__ import annotations

import math
import shlex
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import NamedTuple

import msgspec

from lab.studies.experiments import Row, complete, key, to_stderr
from lab.studies.method_names import parsed
from lab.studies.staleness.records import FinishedCell, StageResults, StudyResults
from lab.studies.staleness.report import write
from lab.studies.trainings import Cell, is_model, start, train
from peers.errors import WrongUsage
from swarm.learn.objectives import OBJECTIVES

CORE = (
    "gepo",
    "gepo_defensive",
    "gepo_paper",
    "gspo/eps=0.2",
    "grpo",
    "cispo",
    "topr",
    "reinforce",
    "gepo_noclip",
    "dr_grpo",
    "m2po",
    "tis",
    "seq_tis_wb",
)
"""Every family once. GSPO's own clip of 3e-4 is for completions of thousands of tokens."""

SOME = 8
"""Methods of the core that are also trained elsewhere than on its axis: all of them would take an hour
more."""

FEW = ("gepo", "gepo_defensive", "gspo/eps=0.2", "grpo", "cispo", "seq_tis_wb", "reinforce")
DELAYS = (0, 8, 16, 32, 64, 128, 256)
MIDDLE = 64
"""Delay of the search and of every stage that varies something else; the paper's own (64 versions, 1800
s)."""

SEEDS = 5
SEARCH = (101, 102)
TABLE_RATES = (0.2, 0.4, 0.8, 1.6)
MODEL_RATES = (0.4e-3, 0.8e-3, 1.6e-3, 3.2e-3)
"""Factors of two around the demo's rate; the table's are those at which it learns within its versions."""

PAPER_KL = 0.005
"""Weight of the KL term in the paper's heterogeneous runs."""


class Stage(NamedTuple):
    """One axis of Cell varied around (`domain`, MIDDLE, log-normal, no KL term, upload)."""

    name: str
    axis: str
    values: tuple[float | str, ...]
    methods: tuple[str, ...]
    domain: str = "digit-sums"


class Plan(NamedTuple):
    stages: tuple[Stage, ...]
    seeds: tuple[int, ...]
    search: tuple[int, ...]
    table: int = 120
    """Versions of a training with a table."""
    model: int = 160
    """Versions of a training with the language model: the best methods are nearly done, the others are
    not."""
    table_rates: tuple[float, ...] = TABLE_RATES
    model_rates: tuple[float, ...] = MODEL_RATES

    def rates(self, domain: str) -> tuple[float, ...]:
        return self.model_rates if is_model(domain) else self.table_rates


Rates = Mapping[tuple[str, str], float]
"""(method, domain) -> learning rate."""


def full(methods: Sequence[str], first: int = 1) -> Plan:
    """About five hours of a core, in the order in which it matters."""
    core = known(methods or CORE)
    some = core[:SOME]
    return Plan(
        stages=(
            Stage("core", "delay", DELAYS, core),
            Stage("domains", "domain", ("sorting", "brackets"), some),
            Stage("kl", "kl", (PAPER_KL,), some),
            Stage("way", "way", ("policy",), some),
            Stage("laws", "law", ("weibull", "exponential", "constant"), some),
            Stage("all", "delay", (0, 64, 256), known((*core, *OBJECTIVES)), "toy"),
        ),
        seeds=tuple(range(first, first + SEEDS)),
        search=SEARCH,
    )


def short(methods: Sequence[str], first: int = 1) -> Plan:
    """A table, few methods, a few minutes."""
    few = Stage("core", "delay", (0, 16, 64, 256), known(methods or FEW), "toy")
    return Plan(stages=(few,), seeds=tuple(range(first, first + 3)), search=SEARCH[:1])


def known(methods: Iterable[str]) -> tuple[str, ...]:
    """These methods as far as they exist, each once, `gepo` first: differences are to it; import paths are
    taken as they are."""
    labels = ((label, parsed(label)[0]) for label in ("gepo", *methods))
    return tuple(dict.fromkeys(label for label, name in labels if name in OBJECTIVES or ":" in name))


# --- cells --------------------------------------------------------------------------------------------------


def domains(stage: Stage) -> tuple[str, ...]:
    return tuple(str(value) for value in stage.values) if stage.axis == "domain" else (stage.domain,)


def searched(plan: Plan, domain: str, methods: Sequence[str]) -> list[Cell]:
    """The search for a domain's rates, the middle ones first."""
    rates = sorted(plan.rates(domain), key=lambda lr: abs(math.log(lr / plan.rates(domain)[1])))
    return [_cell(plan, domain, label, lr, seed) for seed, lr, label in product(plan.search, rates, methods)]


def best(plan: Plan, domain: str, methods: Sequence[str], rows: Mapping[str, Row]) -> dict[str, float]:
    """Method -> the rate with the largest area under the curve, a mean over the search's seeds; the smallest
    of equals.

    A method whose search is not complete has none: it would be handicapped.
    """
    chosen: dict[str, float] = {}
    for label in methods:
        areas = {
            lr: [_area(_cell(plan, domain, label, lr, seed), rows) for seed in plan.search]
            for lr in plan.rates(domain)
        }
        if all(area is not None for at in areas.values() for area in at):
            chosen[label] = max(areas, key=lambda lr: (sum(area or 0.0 for area in areas[lr]), -lr))
    return chosen


def grid(plan: Plan, stage: Stage, rates: Rates) -> list[Cell]:
    """A stage's trainings, seed by seed: any first part of them has all methods in it."""
    cells = []
    for seed, value, label in product(plan.seeds, stage.values, stage.methods):
        domain = str(value) if stage.axis == "domain" else stage.domain
        if (label, domain) in rates:
            cell = _cell(plan, domain, label, rates[label, domain], seed)
            cells.append(msgspec.structs.replace(cell, **{stage.axis: value}))
    return cells


def _cell(plan: Plan, domain: str, label: str, lr: float, seed: int) -> Cell:
    versions = plan.model if is_model(domain) else plan.table
    return Cell.of(domain, label, MIDDLE, lr, seed, versions)


def _area(cell: Cell, rows: Mapping[str, Row]) -> float | None:
    """NaN, of a training that was never evaluated, counts as nothing learned."""
    row = rows.get(key(cell))
    if row is None:
        return None
    area = float(row["auc"])
    return area if math.isfinite(area) else 0.0


# --- the study ----------------------------------------------------------------------------------------------


class Study:
    """A running plan: cells in, rows out, until the minutes are over (0: no limit)."""

    def __init__(self, plan: Plan, out: Path, minutes: float) -> None:
        self._plan, self._out, self._minutes = plan, out, minutes
        self._ledger = out / "ledger.jsonl"
        self._began = time.monotonic()
        self.rates: dict[tuple[str, str], float] = {}
        self.searched: dict[Cell, FinishedCell] = {}
        self.sections: list[StageResults] = []

    def stage(self, stage: Stage) -> None:
        """Search, train, report."""
        for domain in domains(stage):
            self._search(domain, stage.methods)
        cells = grid(self._plan, stage, self.rates)
        done = self._complete(cells, f"{stage.name}: {stage.axis} {', '.join(map(str, stage.values))}")
        asked = len(self._plan.seeds) * len(stage.values) * len(stage.methods)
        self.sections.append(StageResults(stage.name, stage.axis, stage.domain, stage.methods, asked, done))
        plan = self._plan
        write(
            self._out,
            StudyResults(
                command=shlex.join(["swarm", *sys.argv[1:]]),
                seeds=plan.seeds,
                search=plan.search,
                middle=MIDDLE,
                searched=list(self.searched.values()),
                rates=self.rates,
                sections=self.sections,
            ),
        )

    def _search(self, domain: str, methods: Sequence[str]) -> None:
        missing = [label for label in methods if (label, domain) not in self.rates]
        done = self._complete(
            searched(self._plan, domain, missing), f"search for rates in {domain}: {len(missing)} methods"
        )
        self.searched |= {one.cell: one for one in done}
        rows = {key(one.cell): one.row for one in done}
        self.rates |= {(label, domain): lr for label, lr in best(self._plan, domain, missing, rows).items()}

    def _complete(self, cells: Sequence[Cell], title: str) -> list[FinishedCell]:
        """Rows that are done by now, in the order of `cells`."""
        left = self._left()
        if cells and left > 0:
            for domain in dict.fromkeys(cell.domain for cell in cells):
                if is_model(domain):
                    start(domain)  # here and not in two processes at once
            to_stderr(title)
        rows = complete(cells, train, self._ledger, to_stderr, budget=left)
        return [FinishedCell(cell, row) for cell, row in zip(cells, rows, strict=True) if row is not None]

    def _left(self) -> float:
        """Seconds; infinite where no end was set."""
        return 60 * self._minutes - (time.monotonic() - self._began) if self._minutes > 0 else math.inf


def main(quick: bool, out: Path, methods: Sequence[str], minutes: float, first: int = 1) -> int:
    """Run, or resume, the study in the folder `out`, on seeds from `first` on, with `methods` instead of
    those of the core.

    Returns an exit code. Raises WrongUsage for seeds of the search: shown results have to be held out.
    """
    plan = (short if quick else full)(methods, first)
    if set(plan.seeds) & set(plan.search):
        raise WrongUsage(
            f"seeds {plan.seeds} hold some of the search's, {plan.search}: begin elsewhere with --seed"
        )
    study = Study(plan, out, minutes)
    for stage in plan.stages:
        study.stage(stage)
    to_stderr(f"the report: {out / 'report.md'}")
    return 0
