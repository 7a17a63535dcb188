"""The bias-variance lab, `swarm bench gradient`: every method's estimator against the exact policy gradient.

    plan (kl, G, horizon, instance) --ledger, all cores--> moments of each method
        --> gradient.csv, *.png, report.md

N groups of G completions are drawn from an older policy q; each gives one gradient at the learner's p,
through the `loss` that trains. All methods of a cell see the same draws. A few moments say everything, in
units of |g*|^2 where g* = grad J(p) is exact: along = E g.g*, along2 = (E g.g*)^2, mean2 = |E g|^2, trace =
tr Cov g, cosine_32 = E cos(mean of 32 groups, g*). Squares of means are U-statistics: products of different
groups only, so that noise does not pass for bias or signal. The cosine, and MSE at the best scale, compare
methods whatever learning rate each wants. Invariant: same plan, same bytes of CSV on one machine.

Not handled: prompts of different difficulty. Statistics that span a batch see one batch of all N groups of
one prompt, that is their limit for large batches. `prox` is the learner itself and every group is LAG
versions old (0 where q = p).
"""

from __future__ import annotations

import hashlib
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from lab.studies.experiments import Row, complete
from lab.studies.gradient import mdp
from lab.studies.gradient.gradient_report import BATCH, NAMED, LabSetting, gather, report, table
from lab.studies.method_names import chosen, defined
from swarm.learn.objectives import OBJECTIVES, Batch, Objective, loss, objective
from swarm.storage.durable import write_durably
from swarm.types import Struct

LAG = 8.0
"""Only a3po reads it: its proximal policy is then an eighth of the way back to the sampler."""

SCORES = ("geometric", "full")
VARIANTS = ("gspo/eps=0.2",)
"""Methods measured beside those of the table. GSPO's clip of 3e-4 is for completions of thousands of tokens
and drops nearly all of a few."""

KLS = (0.0, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0)
GROUP, HORIZON = 8, 6


class Cell(Struct):
    kl: float
    """KL(q || p), nats a token."""
    group: int
    horizon: int
    instance: int
    groups: int
    """N, a multiple of 32."""
    methods: tuple[str, ...]
    """Labels: a name of OBJECTIVES, or `name/option=value/...`."""
    defined: str
    """Digest of the methods' definitions."""
    setup: str = ""
    """Digest of the world: a changed one is another cell."""


# --- methods ------------------------------------------------------------------------------------------------


def labels(methods: Sequence[str] = ()) -> list[str]:
    """These methods, or all, each once more with its other score where that makes a difference."""
    if methods:
        return list(dict.fromkeys(methods))
    scored = (f"{name}/score={score}" for name in OBJECTIVES for score in SCORES if _differs(name, score))
    return [*OBJECTIVES, *scored, *VARIANTS]


def _differs(name: str, score: str) -> bool:
    other = objective(name, {"score": score})
    if other == objective(name):
        return False
    world = mdp.instance(3, 0.1, 0)
    return not torch.equal(
        *(coefficients(one, world, torch.arange(4)[None])[0] for one in (other, objective(name)))
    )


# --- one cell -----------------------------------------------------------------------------------------------


def measure(cell: Cell) -> Row:
    """`method:moment` of every method of the cell, and the seconds of one core that it took."""
    began = time.process_time()
    world = mdp.instance(cell.horizon, cell.kl, cell.instance)
    truth = mdp.exact(world.tree, world.learner, world.reward)[1].T.flatten()
    drawn = draws(world, cell)
    row: Row = {}
    for label in cell.methods:
        g, metrics = group_gradients(chosen(label), world, drawn, LAG if cell.kl else 0.0)
        found = moments(g, truth) | {name: metrics[name] for name in ("zero", "ess")}
        row |= {f"{label}:{name}": float(f"{value:.7g}") for name, value in found.items()}
    return row | {"groups": float(cell.groups), "seconds": round(time.process_time() - began, 2)}


def draws(world: mdp.Instance, cell: Cell) -> Tensor:
    """(N, G) sequences from the sampler: the same whatever kl."""
    rng = torch.Generator().manual_seed(cell.instance)
    mass = mdp.log_probs(world.tree, world.sampler).sum(-1).exp().cumsum(0)
    ticks = torch.rand(cell.groups, cell.group, generator=rng, dtype=torch.float64) * mass[-1]
    return torch.searchsorted(mass, ticks).clamp(max=len(mass) - 1)


def coefficients(
    method: Objective, world: mdp.Instance, drawn: Tensor, lag: float = LAG
) -> tuple[Tensor, dict[str, float]]:
    """The method's factor of each grad log p with (N*G, T), and its metrics.
    Times N, so that each group's share of the batch's gradient is an estimate of the whole of it.
    """
    sequence, tree = drawn.flatten(), world.tree
    logq = mdp.log_probs(tree, world.sampler)[sequence].float()
    logp = mdp.log_probs(tree, world.learner)[sequence].float().requires_grad_()
    batch = Batch(
        logp=logp,
        logq=logq,
        mask=tree.mask[sequence],
        reward=world.reward[sequence].float(),
        group=torch.arange(len(drawn)).repeat_interleave(drawn.shape[1]),
        ref=logq,
        lag=torch.full((len(sequence),), lag),
        horizon=float(tree.mask.shape[1]),
    )
    out = loss(method, batch)
    if out.value.requires_grad:
        out.value.backward()
    slope = torch.zeros_like(logq) if logp.grad is None else logp.grad
    return -slope * len(drawn), out.metrics


def group_gradients(
    method: Objective, world: mdp.Instance, drawn: Tensor, lag: float = LAG
) -> tuple[Tensor, dict[str, float]]:
    """(N, K*S) one gradient a group, and the method's metrics."""
    coefficient, metrics = coefficients(method, world, drawn, lag)
    owner = torch.arange(len(drawn)).repeat_interleave(drawn.shape[1])
    return mdp.gradients(world.tree, world.learner, drawn.flatten(), coefficient, owner, len(drawn)), metrics


def moments(g: Tensor, truth: Tensor) -> dict[str, float]:
    """Of N independent estimates g (N, P), N a multiple of 32, against the truth (P,); in units of the
    truth's square."""
    n, size = len(g), truth.dot(truth)
    square, sum_, along = g.square().sum(), g.sum(0), g @ truth / size
    mean2 = (sum_.dot(sum_) - square) / (n * (n - 1))
    batches = g.view(-1, BATCH, g.shape[1]).sum(1)
    length = batches.norm(dim=1) * size.sqrt()
    cosine = torch.where(length > 0, batches @ truth / length.clamp(min=1e-300), 0.0).mean()
    return {
        "along": float(along.mean()),
        "along2": float((along.sum() ** 2 - along.square().sum()) / (n * (n - 1))),
        "mean2": float(mean2 / size),
        "trace": float((square / n - mean2) / size),
        "cosine_32": float(cosine),
    }


# --- the study ----------------------------------------------------------------------------------------------


def plan(quick: bool, methods: Sequence[str], first: int = 0) -> list[Cell]:
    """What to measure, an instance at a time, so that a plan cut short has every setting. Variants: over kl
    only."""
    instances, completions = (6, 8192) if quick else (24, 16384)
    at, groups, horizons = (
        ((0.1,), (2, 32), (3, 8)) if quick else ((0.0, 0.03, 0.3), (2, 4, 16, 32), (3, 4, 8))
    )
    lines = [LabSetting(kl, GROUP, HORIZON) for kl in KLS]
    sweeps = [LabSetting(kl, group, HORIZON) for group in groups for kl in at]
    sweeps += [LabSetting(kl, GROUP, horizon) for horizon in horizons for kl in at]
    plain = [label for label in methods if "/" not in label or label in NAMED] or methods
    return [
        _cell(setting, seed, completions, labels)
        for seed in range(first, first + instances)
        for several, labels in ((lines, methods), (sweeps, plain))
        for setting in several
    ]


def _cell(setting: LabSetting, instance: int, completions: int, methods: Sequence[str]) -> Cell:
    groups = completions // max(setting.group, 4)
    return Cell(
        **setting._asdict(),
        instance=instance,
        groups=groups,
        methods=tuple(methods),
        defined=defined(methods),
        setup=setup(),
    )


def setup() -> str:
    """Hex digest of everything that all cells share and none contains."""
    shared = (mdp.SYMBOLS, mdp.SKEW, mdp.LATE, mdp.CORRECT, mdp.FORMAT, LAG, BATCH)
    return hashlib.sha256(repr(shared).encode()).hexdigest()[:8]


def main(quick: bool, out: Path, methods: Sequence[str], first: int = 0) -> int:
    """Measure, then write gradient.csv, the plots and report.md to `out`. `first` is the first instance's
    seed. Returns 0."""
    began = time.monotonic()

    def say(text: str) -> None:
        print(f"gradient {time.monotonic() - began:6.1f} s  {text}", file=sys.stderr, flush=True)

    cells = plan(quick, labels(methods), first)
    rows = complete(cells, measure, out / "cells.jsonl", say)
    records = gather([LabSetting(cell.kl, cell.group, cell.horizon) for cell in cells], rows)
    from lab.studies.gradient import pictures

    write_durably(out / "gradient.csv", table(records))
    for path in pictures.gradient(records, out):
        say(f"wrote {path}")
    words = ["swarm bench gradient", "--quick" if quick else "", f"--out {out}"]
    words += [f"--seed {first}"] if first else []
    words += [f"--methods {','.join(methods)}"] if methods else []
    effort = sum(float(row["seconds"]) for row in rows if row)
    text = report(records, " ".join(filter(None, words)), sorted({cell.instance for cell in cells}), effort)
    write_durably(out / "report.md", text.encode())
    say(f"wrote {out / 'gradient.csv'} and {out / 'report.md'}")
    return 0
