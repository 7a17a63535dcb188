"""Learning rates: the defaults, each with its source, nothing is guessed; and the decay after the warm-up.

    run.optimizer.lr = 0 --with_learning_rate(run, parameters), where a run begins-->
        a run whose Spec has a rate, and a sentence that names its source

A kind of run has a rate here only if docs/ or a publication supports it; otherwise UnknownRate suggests
values to try. A rate that is too high destroys a model's abilities within a few versions; one that is too low
only costs time.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import msgspec

from swarm.settings.config import Run

SMALLEST, LARGEST = 3e8, 3.3e10
"""Parameters of the models behind the published rates: 0.5B to 32B, with a margin below."""


class UnknownRate(ValueError):
    """No rate is known for this kind of model and training; the message suggests values to try."""


class LearningRate(NamedTuple):
    """A learning rate and its source."""

    lr: float
    source: str


EMBEDDED = {
    "digit-sums": LearningRate(1e-3, "the demo's; half of it learns as well (docs/staleness/report.md)"),
    "sorting": LearningRate(4e-4, "the best that docs/staleness/report.md searched"),
    "brackets": LearningRate(4e-4, "the best that docs/staleness/report.md searched"),
    "toy": LearningRate(0.05, "that of the scenarios in configs/scenarios"),
}
"""By task: rates for all weights of the embedded model, or of the table of logits in `toy`."""

FULL = LearningRate(1e-6, "GEPO's authors (arXiv 2508.17850) and TRL's GRPO train all weights with it")
ADAPTER = LearningRate(
    1e-5, "ten times that of all weights, the rule of LoRA Without Regret (Schulman et al., 2025)"
)


def known_rate(run: Run, parameters: float) -> LearningRate:
    """The known rate for this run's model of `parameters` parameters. Raises UnknownRate."""
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
    raise UnknownRate(
        f"no learning rate is known for {what} of {run.model.name}{_billions(parameters)} on the task"
        f" {run.task.name}: set run.optimizer.lr; {cautious}, and the dashboard shows whether held-out"
        " accuracy rises"
    )


def with_learning_rate(run: Run, parameters: float) -> tuple[Run, str]:
    """The run with its learning rate, and a sentence that names the rate's source: empty where the run has
    set its own. Raises UnknownRate."""
    if run.optimizer.lr > 0:
        return run, ""
    known = known_rate(run, parameters)
    sentence = f"learning rate {known.lr:g}: {known.source}; run.optimizer.lr sets another"
    optimizer = msgspec.structs.replace(run.optimizer, lr=known.lr)
    return msgspec.structs.replace(run, optimizer=optimizer), sentence


def decayed(run: Run, version: int) -> float:
    """Factor of the learning rate of a step from this version, 0 to 1: a function of the version alone, so
    that learners agree on it however often they stepped, and a version is made again with the same bits."""
    settings, last = run.optimizer, run.stop.versions
    if settings.decay == "constant" or version < settings.warmup:
        return 1.0
    left = max(0.0, (last - version) / max(1, last - settings.warmup))
    # rounded: the last bit of a cosine is not the same on every machine
    return left if settings.decay == "linear" else round((1 - math.cos(math.pi * left)) / 2, 9)


def _billions(parameters: float) -> str:
    if not parameters:  # of a model that is not made yet
        return ""
    return (
        f" ({parameters / 1e9:.1f}B parameters)"
        if parameters >= 1e8
        else f" ({parameters / 1e6:.1f}M parameters)"
    )
