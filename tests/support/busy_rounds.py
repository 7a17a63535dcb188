"""The share of time that a learner computes, and learners whose steps differ by a bit."""

from __future__ import annotations

import pytest
import torch
from role_swarms import Told

from swarm.events import Trained
from swarm.learn.learners.learner import Learner


def busy(told: Told, learner: str, since: float) -> float:
    """Share of its time that a learner computes."""
    steps = told.of(Trained, learner, since=since)
    return float(sum(event.learn + event.step for event in steps[1:]) / (steps[-1].at - steps[0].at))


def flip_bits(patch: pytest.MonkeyPatch) -> None:
    """At every fifth version the learners' steps differ, as by a bit that flipped."""
    order, step = dict[int, int](), Learner.step

    def differs(learner: Learner, vector: torch.Tensor) -> dict[str, float]:
        mine = order.setdefault(id(learner), len(order))
        return step(learner, vector + (1e-2 * mine if learner.version % 5 == 4 else 0.0))

    patch.setattr(Learner, "step", differs)
