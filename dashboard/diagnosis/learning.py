"""Rules about learning itself, from the newest versions' figures: weights, divergence, gradients, reward,
accuracy, signal."""

from __future__ import annotations

import math
from collections.abc import Iterator
from statistics import fmean, median, pstdev

from dashboard.diagnosis.situation import Situation, problem
from dashboard.fold.recent import STRETCH
from dashboard.views import Problem

LAST = 5
"""Versions over which a figure is averaged: one batch's alone scatters."""

COLLAPSED = 1.5
"""Times 1/G: so small an effective sample size means that one completion of a group has all the weight.
Healthy runs with G = 8 stay above 0.6."""

ZERO = 0.9
"""Share of samples without any weight; healthy runs stay below 0.4."""

NATS = 2.0
"""Nats a token between sampler and learner: healthy runs stay below 0.7 over five versions."""

EXPLODED = 10.0
"""Times the median norm of the versions before."""

CHANCE = 3.0
"""Standard deviations of a difference of two shares: one evaluation in seven hundred is as far below by
chance."""

FLAT = 0.99
"""Share of groups in which all rewards are equal."""


def _last(s: Situation, name: str, count: int = LAST) -> float | None:
    values = s.recent.metric(name, count)
    return fmean(values) if len(values) == count else None


def weights(s: Situation) -> Iterator[Problem]:
    """Collapsed importance weights."""
    ess, zero, group = _last(s, "ess"), _last(s, "zero"), s.run.sampling.group_size
    if zero is not None and zero >= ZERO:
        text = (
            f"The importance weights collapsed: {zero:.0%} of the samples of the last {LAST} versions have"
            " weight zero."
        )
    elif ess is not None and ess * group <= COLLAPSED:
        text = (
            f"The importance weights collapsed: of a group's {group} completions {ess * group:.2g} count"
            f" (last {LAST} steps)."
        )
    else:
        return
    lag = s.recent.metric("lag_versions", LAST)
    age = f" Groups are {fmean(lag):.3g} versions old when they are trained on." if lag else ""
    yield problem(
        "weights",
        "error",
        (
            text,
            (
                "The samplers' policies are too far from the learners' for the objective"
                f" {s.run.objective.name} to correct.{age}"
            ),
            (
                "Let groups be younger (`run.window.versions`), take smaller steps (`run.optimizer.lr`), or"
                " an objective with a gentler trust region (`swarm objectives`)."
            ),
        ),
    )


def divergence(s: Situation) -> Iterator[Problem]:
    """Samplers and learners that drifted apart, while the weights still hold."""
    kl = _last(s, "kl")
    if kl is None or kl < NATS:
        return
    yield problem(
        "kl",
        "warning",
        (
            (
                f"Samplers and learners have drifted apart: {kl:.2g} nats per token over the last {LAST}"
                " versions."
            ),
            (
                "Groups are too old for the size of the steps, or a sampler's engine computes other"
                " log-probabilities than the learner."
            ),
            (
                "Lower `run.optimizer.lr` or `run.window.versions`; if only one sampler is old or new, look"
                " at its engine first."
            ),
        ),
    )


def gradients(s: Situation) -> Iterator[Problem]:
    """A gradient norm far beyond the usual."""
    norms = s.recent.metric("grad_norm")
    newest, before = norms[-3:], norms[:-3]
    if len(before) < STRETCH or (middle := median(before)) <= 0.0:
        return
    # Near convergence norms vanish, and a norm that a step takes whole is no explosion.
    if sum(norm >= max(EXPLODED * middle, s.run.optimizer.grad_clip) for norm in newest) < 2:
        return
    yield problem(
        "gradient",
        "warning",
        (
            f"The gradient exploded: its norm is {max(newest):.3g}, where {middle:.3g} is usual.",
            (
                f"Clipping at {s.run.optimizer.grad_clip:g} keeps the steps small, but their direction is"
                " that of a few samples."
            ),
            "If the reward falls too: lower `run.optimizer.lr`, and go on from an older checkpoint.",
        ),
    )


def reward(s: Situation) -> Iterator[Problem]:
    """A reward far below its earlier values."""
    best, start, rewards = s.recent.best, s.recent.start, s.recent.metric("reward", 2 * STRETCH)
    if best is None or start is None or len(rewards) < 2 * STRETCH:
        return
    now = fmean(rewards[STRETCH:])
    fall = max(0.5 * (best - start), 0.5 * abs(best), 2 * pstdev(rewards))
    if best - max(now, fmean(rewards)) <= fall:
        return
    yield problem(
        "reward",
        "error",
        (
            f"The reward collapsed: {now:.3g} over the last {STRETCH} versions, it has been {best:.3g}.",
            (
                "The policy unlearned: steps too large for how old the groups are, or a reward that it"
                " learned to cheat."
            ),
            (
                "Read the newest samples; then lower `run.optimizer.lr` or `run.window.versions` and go on"
                " from an older checkpoint."
            ),
        ),
    )


def accuracy(s: Situation) -> Iterator[Problem]:
    """Held-out accuracy below where the run began, by more than the number of its tasks lets happen by
    chance."""
    first, last = s.state.accuracies.get("first"), s.state.accuracies.get("last")
    if first is None or last is None or first[0] != 0 or last[0] == 0:
        return
    chance = sum(share * (1.0 - share) for _, share in (first, last)) / s.run.evaluation.tasks
    if first[1] - last[1] <= CHANCE * math.sqrt(chance):
        return
    yield problem(
        "accuracy",
        "error",
        (
            (
                f"The run unlearns: held-out accuracy is {last[1]:.1%} at version {last[0]}, and was"
                f" {first[1]:.1%} at version 0."
            ),
            f"The steps are too large for this model and task: the learning rate is {s.run.optimizer.lr:g}.",
            (
                "Begin again with a smaller `run.optimizer.lr`, a third of it or less: what is released now"
                " is worse than version 0."
            ),
        ),
    )


def signal(s: Situation) -> Iterator[Problem]:
    """Groups without any difference in reward teach nothing."""
    flat, mean = _last(s, "flat", 2 * LAST), _last(s, "reward", 2 * LAST)
    if flat is None or mean is None or flat < FLAT:
        return
    yield problem(
        "flat",
        "warning",
        (
            (
                f"Nothing is left to learn from: all completions of a group have equal rewards in {flat:.0%}"
                f" of the groups (last {2 * LAST} versions), {mean:.3g} in the mean."
            ),
            "The advantage of every completion is zero: the tasks are all solved, or none of them ever is.",
            (
                "Choose harder tasks (or easier ones), or a larger `run.sampling.group_size`; if all is"
                " solved, the run is done."
            ),
        ),
    )
