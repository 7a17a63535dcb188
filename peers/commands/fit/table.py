"""Formats the rows of `swarm fit` as a text table or as JSON.

    Case, FitRows --heading, table, hints--> lines            --as_data--> JSON

Not handled here: where the figures come from (peers.fit, peers.commands.fit.command).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import msgspec

from peers.fit import estimates, rounds
from peers.fit.estimates import ExpectedPace, Speed
from peers.fit.fits import GB, LEARNER, Case, FitRow
from swarm.core.agreement.shares import UNKNOWN


def heading(case: Case, name: str, speed: Callable[[str], Speed]) -> list[str]:
    """Three lines above the table: the model, this machine, the work."""
    model, work = case.model_shape, case.run_shape
    device = speed("bfloat16" if case.machine.gpus else "float32")
    free = f"{case.machine.free / GB:.1f} GB RAM free"
    for gpu in case.machine.gpus[:1]:
        free = f"{gpu.free / GB:.1f} GB of the GPU and {free}"
    return [
        (
            f"{name}: {model.parameters / 1e6:,.1f}M parameters, {model.layers} layers,"
            f" vocabulary {model.vocabulary:,}"
        ),
        (
            f"here: {case.machine}; {free}; {device.flops / 1e9:,.0f} GFLOP/s, {device.bandwidth / 1e9:,.0f}"
            " GB/s"
        ),
        (
            f"work: groups of {work.group} completions of {work.tokens} tokens to prompts of {work.prompt}; "
            f"a sampler's call has {work.tasks} groups, a learner's step {work.groups}"
        ),
    ]


def table(case: Case, found: list[FitRow]) -> list[str]:
    """The rows as lines of aligned columns."""
    own = case.config.run.model.training + (
        "+adamw8bit" if case.config.run.optimizer.name == "adamw8bit" else ""
    )
    gpu = bool(case.machine.gpus)
    measured = "measured" if any(row.measured for row in found) else ""
    head = ["role", "kind", *(["GPU GB"] if gpu else []), "RAM GB", "fits", "predicted", "", measured, "", ""]
    lines = [head]
    for row in found:
        star = " *" if row.role == LEARNER and row.kind == own else ""
        cells = [
            row.role,
            row.kind + star,
            *_gigabytes(row),
            row.fits,
            *_speed(row.predicted if row.fits != "no" else None),
        ]
        several = f"{row.gpus} GPUs" if row.gpus > 1 else ""
        needs = f"needs {row.why}" if row.why and row.fits == "no" else ""
        notes = filter(None, [needs, several, _rows(row.padded), row.note])
        lines.append([*cells, *_speed(row.measured), "; ".join(notes)])
    widths = [max(len(line[column]) for line in lines) for column in range(len(head) - 1)]
    return ["  ".join([*map(str.ljust, line, widths), line[-1]]).rstrip() for line in lines]


def _rows(padded: str | None) -> str:
    if padded is None:
        return ""
    return f"each completion with a copy of its prompt: {padded}" if padded else "each prompt once"


def _gigabytes(row: FitRow) -> list[str]:
    """The range from the least to the easy need."""
    least, easy = row.needs
    if row.gpus:
        pairs = [(least.computing, easy.computing), (least.keeping, easy.keeping)]
    else:
        pairs = [(least.computing + least.keeping, easy.computing + easy.keeping)]
    return [
        f"{a / GB:.1f}-{b / GB:.1f}" if f"{a / GB:.1f}" != f"{b / GB:.1f}" else f"{a / GB:.1f}"
        for a, b in pairs
    ]


def _speed(pace: ExpectedPace | None) -> list[str]:
    return ["", ""] if pace is None else [f"{pace.tokens:,.0f} tok/s", f"{pace.step:,.1f} s"]


def hints(case: Case, found: list[FitRow], before: int) -> Iterator[str]:
    """Lines below the table: where corrections come from, and what to change when something does not fit."""
    if before:
        yield (
            f"predictions are corrected by {before} earlier measurements on this device"
            f" ({case.corrections.path})"
        )
    if any(row.measured for row in found):
        yield f"these measurements correct the next predictions: {case.corrections.path}"
    if case.model_shape.refusal:
        yield case.model_shape.refusal
    if all(row.fits == "no" for row in found):
        least = min(found, key=lambda row: row.needs.least.computing + row.needs.least.keeping)
        yield f"nothing fits: even {least.role} {least.kind} needs {least.why}. What would help:"
        yield "  a smaller model, or a machine with more memory"
        yield "  adapters instead of all weights: --set run.model.training=lora, or qlora"
        yield "  shorter completions (run.sampling.max_tokens), smaller groups"
    elif all(row.fits == "no" for row in found if row.role == LEARNER):
        can = next(row for row in found if row.fits != "no")
        yield (
            f"no learner fits: this machine can be a {can.role} ({can.kind}) of a run whose learners are"
            " elsewhere"
        )
    if any(row.fits != "no" for row in found if row.role == LEARNER):
        yield f"with other learners {round_hint(case)}"


def round_hint(case: Case) -> str:
    """How fast a learner's line must be for a round of averaging, and what to change where it is slower."""
    values = estimates.trained(case.model_shape, case.run_shape)
    uplink, run = case.config.peer.limits.upload * rounds.MBIT or UNKNOWN, case.config.run
    return rounds.objection(run, values, uplink) or rounds.needs(run, values, uplink)


def as_data(case: Case, name: str, found: list[FitRow]) -> dict[str, object]:
    """The whole table as JSON, in bytes and seconds."""
    return {
        "model": name,
        "anatomy": vars(case.model_shape),
        "machine": msgspec.to_builtins(
            case.machine._asdict() | {"gpus": [gpu._asdict() for gpu in case.machine.gpus]}
        ),
        "ask": case.run_shape._asdict(),
        "corrections": {"file": str(case.corrections.path), "measurements": case.corrections.count()},
        "rows": [_row_data(row) for row in found],
    }


def _row_data(row: FitRow) -> dict[str, object]:
    needs = {
        f"{name}_{part}": round(getattr(need, part))
        for name, need in row.needs._asdict().items()
        for part in ("computing", "keeping")
    }
    paces = {
        name: (
            None
            if pace is None
            else {"tokens_per_second": round(pace.tokens, 2), "step_seconds": round(pace.step, 4)}
        )
        for name, pace in (("predicted", row.predicted), ("measured", row.measured))
    }
    shown = {
        "role": row.role,
        "kind": row.kind,
        "fits": row.fits,
        "gpus": row.gpus,
        "why": row.why,
        "note": row.note,
        "padded": row.padded,
    }
    return {**shown, **needs, **paces}
