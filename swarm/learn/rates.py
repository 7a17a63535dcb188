"""Default learning rates: by kind of model and training, each with its source; nothing is guessed.

    run.optimizer.lr = 0 --settled(run, parameters), where a run begins-->
        a run whose Spec has a rate, and a sentence: why

Where neither a study of ours nor a published one stands behind a number, there is none, and Unknown says what
to try. A rate that is too high unlearns what a model can do within a few versions; one that is too low costs
time alone.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from swarm.config import Run

SMALLEST, LARGEST = 3e8, 3.3e10
"""Parameters of the models behind the published rates: 0.5B to 32B, with a margin below."""


class Unknown(ValueError):
    """No rate is known for this kind of model and training; the message says what to try."""


class Rate(NamedTuple):
    lr: float
    source: str


EMBEDDED = {
    "digit-sums": Rate(1e-3, "the demo's; half of it learns as well (docs/staleness/report.md)"),
    "sorting": Rate(4e-4, "the best that docs/staleness/report.md searched"),
    "brackets": Rate(4e-4, "the best that docs/staleness/report.md searched"),
    "toy": Rate(0.05, "that of the scenarios in configs/scenarios"),
}
"""All weights of the embedded model, or of the table that stands for one in `toy`, by task."""

FULL = Rate(1e-6, "GEPO's authors (arXiv 2508.17850) and TRL's GRPO train all weights with it")
ADAPTER = Rate(1e-5, "ten times that of all weights, the rule of LoRA Without Regret (Schulman et al., 2025)")


def rate(run: Run, parameters: float) -> Rate:
    """The known rate for this run's model of `parameters` parameters. Raises Unknown."""
    full = run.model.training == "full"
    if run.model.name == "embedded":
        if full and (known := EMBEDDED.get(run.task.name)) is not None:
            return known
        cautious = "1e-4 is a cautious start for a model this small"
    elif SMALLEST <= parameters <= LARGEST:
        return FULL if full else ADAPTER
    else:
        cautious = f"{1e-6 if full else 1e-5:g} is a cautious start"
    what = "all weights" if full else "an adapter"
    raise Unknown(
        f"no learning rate is known for {what} of {run.model.name} ({_billions(parameters)}) on the task"
        f" {run.task.name}: set run.optimizer.lr; {cautious}, and the page shows whether held-out accuracy"
        " rises"
    )


def settled(run: Run, parameters: float) -> tuple[Run, str]:
    """The run with a rate, and a sentence where it was not the run's own. Raises Unknown."""
    if run.optimizer.lr > 0:
        return run, ""
    known = rate(run, parameters)
    said = f"learning rate {known.lr:g}: {known.source}; run.optimizer.lr sets another"
    return msgspec.structs.replace(run, optimizer=msgspec.structs.replace(run.optimizer, lr=known.lr)), said


def _billions(parameters: float) -> str:
    return (
        f"{parameters / 1e9:.1f}B parameters" if parameters >= 1e8 else f"{parameters / 1e6:.1f}M parameters"
    )
