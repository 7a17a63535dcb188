"""The study `swarm bench band`: log ratios of honest samplers, and the cost of a lying sampler.

    honest   engines x delays x learning rates x tasks --trainings of the roles that ship-->
             log ratios of every group, by lag
    liars    one sampler of three lies, to a learner that checks claims and to one that does not -->
             held-out accuracy
    both     --> band.csv, liars.csv, band.png

The log ratio of a token is the learner's log-probability less the claimed one
(swarm.core.intake.claimed_logprobs). Delays are those of the staleness study (lab.studies.trainings): `delay`
versions pass within the longest one. A plan that is interrupted continues where it stopped. Not handled here:
conclusions from the figures (docs/trust.md).
"""

from __future__ import annotations

import csv
import dataclasses
import io
import math
import os
import time
from collections.abc import Callable, Coroutine, Iterable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from lab.studies.experiments import Row, complete, to_stderr
from lab.studies.liars.liars import EVERY_TOKEN, Lied, suffer
from lab.studies.trainings import GROUPS, Cell, is_model, scenario, start
from peers.commands import sim
from swarm.core.intake import claimed_logprobs
from swarm.learn.learners.base_learner import Gradient, GradientWork
from swarm.learn.learners.learner import Learner, batch_of
from swarm.learn.objectives import Total
from swarm.protocol import Role
from swarm.settings import config as settings
from swarm.sim.world import SimPeer, World
from swarm.storage.durable import write_durably
from swarm.types import BatchRewards, Group, Struct

C = TypeVar("C", bound=msgspec.Struct)
LAGS = (0, 2, 4, 8, 16, 32, 64)
"""Versions: the last lag of each bin."""

FIGURES = ("groups", "drift", "drift_min", "drift_max", "evidence_max", "token_min", "token_max")
"""Columns of a bin: groups, the mean and the extremes of their drift, of their evidence and of single tokens'
log ratios."""


class Honest(Struct):
    """A training whose samplers all make true claims."""

    cell: Cell
    engine: str = "float32"
    """The samplers': `float32` as the learner, `bfloat16`, `int8` or `nf4`."""


def honest(quick: bool) -> list[Honest]:
    versions = 20 if quick else 80

    def one(
        delay: int, lr: float, engine: str = "float32", domain: str = "digit-sums", method: str = "gepo"
    ) -> Honest:
        return Honest(cell=Cell.of(domain, method, delay, lr, 1, versions), engine=engine)

    if quick:
        return [one(16, 0.4, domain="toy")]
    return [
        *(one(delay, 1e-3) for delay in (0, 64, 128)),  # 1e-3 is the demo's
        one(64, 3.2e-3),
        *(one(0, 1e-3, engine) for engine in ("bfloat16", "int8")),
        one(64, 1e-3, "nf4"),
        one(64, 1e-3, domain="sorting"),
        one(64, 1e-3, method="grpo"),
    ]


def liars(quick: bool) -> list[Lied]:
    domain, versions, rate = ("toy", 40, 0.4) if quick else ("digit-sums", 80, 1e-3)
    nats = (0.0, math.inf) if quick else (0.0, 1.5, math.inf)
    cell = Cell.of(domain, "gepo", 16, rate, 1, versions)
    return [Lied(cell=cell, nats=lie, doubts=doubts) for lie in nats for doubts in (True, False)]


def main(quick: bool, out: Path, minutes: float) -> int:
    """Run or resume the study in the folder `out`; no training starts after so many minutes (0: no limit).
    Returns an exit code. The report has the trainings that are done."""
    began, most = time.monotonic(), 60 * minutes if minutes > 0 else math.inf
    bands, lies = honest(quick), liars(quick)
    for domain in dict.fromkeys(
        [*(each.cell.domain for each in bands), *(each.cell.domain for each in lies)]
    ):
        if is_model(domain):
            start(domain)  # here and not in two processes at once
    ledger = out / "ledger.jsonl"
    suffered = _done(lies, suffer, ledger, most)
    write(out, _done(bands, measure, ledger, most - (time.monotonic() - began)), suffered)
    to_stderr(f"figures: {out / 'band.png'}, {out / 'band.csv'}, {out / 'liars.csv'}")
    return 0


def _done(cells: Sequence[C], work: Callable[[C], Row], ledger: Path, left: float) -> list[tuple[C, Row]]:
    """Rows that are done by now, or within the `left` seconds."""
    rows = complete(cells, work, ledger, to_stderr, budget=left)
    return [(cell, row) for cell, row in zip(cells, rows, strict=True) if row is not None]


# --- honest samplers ----------------------------------------------------------------------------------------


def measure(one: Honest) -> Row:
    """One training. Columns are `LAG figure`: a figure of the groups whose lag is in the bin that ends at
    LAG."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    seen: list[TakenGroup] = []

    def spawn(peer: SimPeer) -> Coroutine[Any, Any, None]:
        whole = _with_engine(peer, one.engine)
        kit = sim.policy_parts(whole)

        def learner() -> Any:
            made, tokenization = kit.learner()
            assert isinstance(made, Learner)
            return watched(made, seen), tokenization

        return sim.run_peer(dataclasses.replace(peer, config=whole), kit._replace(learner=learner))

    World(scenario(one.cell), spawn, sinks=[]).run()
    return {
        f"{last} {name}": value for last, its in binned(seen).items() for name, value in figures(its).items()
    }


class TakenGroup(Struct):
    """A group that a learner took."""

    lag: int
    drift: float
    evidence: float
    lowest: float
    """Log ratio of a token,"""
    highest: float


def watched(learner: Learner, seen: list[TakenGroup]) -> Learner:
    """The same learner, which records the claim check of each group before it computes a gradient."""
    import torch

    make = learner.gradient

    def gradient(
        groups: Sequence[Group],
        prompts: Sequence[str],
        rewards: Sequence[tuple[float, ...]],
        now: float,
        others: tuple[BatchRewards, ...] = (),
        chunks: Sequence[int] = (),
    ) -> Gradient:
        work = GradientWork(groups, prompts, rewards, Total.of([group.lengths for group in groups], rewards))
        with torch.no_grad():
            batch, checks = batch_of(learner.policy, learner.run, work, learner.version)
        sizes = [len(group.lengths) for group in groups]
        ratios = torch.where(batch.mask, batch.logp - batch.logq, 0.0).split(sizes)
        for group, its, x in zip(groups, checks, ratios, strict=True):
            lag = learner.version - group.version
            lowest, highest = float(x.min()), float(x.max())
            seen.append(
                TakenGroup(lag=lag, drift=its.drift, evidence=its.evidence, lowest=lowest, highest=highest)
            )
        return make(groups, prompts, rewards, now, others, chunks)

    learner.gradient = gradient  # type: ignore[method-assign]
    return learner


def _with_engine(peer: SimPeer, kind: str) -> settings.Config:
    """The peer's configuration, with the samplers' weights of this kind."""
    whole = peer.config
    engine = settings.EngineSettings(tasks=GROUPS)
    if peer.role is Role.SAMPLER and kind == "bfloat16":
        engine = msgspec.structs.replace(engine, dtype="bfloat16")
    if peer.role is Role.SAMPLER and kind in ("int8", "nf4"):
        engine = msgspec.structs.replace(engine, quantize=kind)
    sampling = msgspec.structs.replace(whole.run.sampling, quantized=kind in ("int8", "nf4"))
    run = msgspec.structs.replace(whole.run, sampling=sampling)
    return msgspec.structs.replace(whole, run=run, peer=msgspec.structs.replace(whole.peer, engine=engine))


def binned(seen: Iterable[TakenGroup]) -> dict[int, list[TakenGroup]]:
    """By the last lag of the bin; groups older than the window are left out."""
    bins: dict[int, list[TakenGroup]] = {}
    for each in seen:
        if (last := next((last for last in LAGS if each.lag <= last), None)) is not None:
            bins.setdefault(last, []).append(each)
    return dict(sorted(bins.items()))


def figures(seen: Sequence[TakenGroup]) -> dict[str, float]:
    drifts = [each.drift for each in seen]
    return {
        "groups": len(seen),
        "drift": sum(drifts) / len(drifts),
        "drift_min": min(drifts),
        "drift_max": max(drifts),
        "evidence_max": max(each.evidence for each in seen),
        "token_min": min(each.lowest for each in seen),
        "token_max": max(each.highest for each in seen),
    }


# --- the report ---------------------------------------------------------------------------------------------


def write(out: Path, bands: Sequence[tuple[Honest, Row]], lies: Sequence[tuple[Lied, Row]]) -> None:
    out.mkdir(parents=True, exist_ok=True)
    head = ("task", "method", "engine", "lr", "delay", "lag_to", *FIGURES)
    lines = [
        (
            one.cell.domain,
            one.cell.method,
            one.engine,
            one.cell.lr,
            one.cell.delay,
            last,
            *(_short(row[f"{last} {name}"]) for name in FIGURES),
        )
        for one, row in bands
        for last in LAGS
        if f"{last} groups" in row
    ]
    _csv(out / "band.csv", head, lines)
    columns = ("claims", "learner", "first", "best", "last", "admitted", "refused", "reached", "curve")
    rows: list[Sequence[object]] = [
        (
            _lie(one.nats),
            "doubts" if one.doubts else "believes all",
            *(_short(row[name]) for name in columns[2:]),
        )
        for one, row in lies
    ]
    _csv(out / "liars.csv", columns, rows)
    _draw(out / "band.png", bands)


def _lie(nats: float) -> str:
    return f"{EVERY_TOKEN:g} for all" if math.isinf(nats) else f"{nats:g} less" if nats else "nobody lies"


def _short(value: float | str) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _csv(path: Path, head: Sequence[str], lines: Iterable[Sequence[object]]) -> None:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([head, *lines])
    write_durably(path, text.getvalue().encode())


def _draw(path: Path, bands: Sequence[tuple[Honest, Row]]) -> None:
    from peers.commands.journals.drawing import Curve, Panel, lines  # matplotlib takes a second

    def curves(name: str, edge: str, at: float) -> list[Curve]:
        found = []
        for one, row in bands:
            lags = [last for last in LAGS if f"{last} {name}" in row]
            found.append(Curve(_label(one), lags, [float(row[f"{last} {name}"]) for last in lags]))
        return [*found, Curve(edge, LAGS, [at] * len(LAGS))]

    lines(
        path,
        [
            Panel(
                "most evidence against a group",
                "lag, versions",
                "nats",
                curves("evidence_max", "the edge", claimed_logprobs.GROUP_EVIDENCE_LIMIT),
                True,
            ),
            Panel(
                "lowest mean log ratio of a group",
                "lag, versions",
                "nats a token",
                curves("drift_min", "the edge", -settings.Window().drift),
                True,
            ),
        ],
    )


def _label(one: Honest) -> str:
    """The delay, and differences from the demo."""
    cell = one.cell
    pairs = (
        (cell.domain, "digit-sums"),
        (cell.method, "gepo"),
        (one.engine, "float32"),
        (f"lr {cell.lr:g}", "lr 0.001"),
    )
    return " ".join([f"D {cell.delay}", *(what for what, usual in pairs if what != usual)])
