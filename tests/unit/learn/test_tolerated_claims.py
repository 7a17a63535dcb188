"""What a sampler can move by claims that audits tolerate, and what training by log-probabilities of a replay
in their place would move (docs/trust.md)."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from swarm.core.audits.auditing import LEAST
from swarm.learn.objectives import Batch, objective, weights

GROUPS, SIZE, TOKENS = 64, 8, 64
ROUNDING = 0.006
"""Nats a token by which honest claims in bfloat16 and replays in float32 differ."""


def batch(change: Tensor | float) -> Batch:
    """Groups of a policy that moved on a little, whose claims are changed (B, T) by so many nats."""
    gen = torch.Generator().manual_seed(1)
    rows = GROUPS * SIZE
    truth = -torch.rand(rows, 1, generator=gen) - torch.rand(rows, TOKENS, generator=gen)
    return Batch(
        logp=(truth + 0.1 * torch.randn(truth.shape, generator=gen)).clamp(max=-1e-3),
        logq=truth + change,
        mask=torch.ones_like(truth),
        reward=torch.rand(rows, generator=gen).round(),
        group=torch.arange(GROUPS).repeat_interleave(SIZE),
        prox=truth,
        ref=truth,
        lag=torch.ones(rows).long(),
        horizon=8.0,
    )


def tuned() -> Tensor:
    """The worse half of each group is claimed less probable, the better half more, as far as nobody minds."""
    order = batch(0.0).reward.reshape(GROUPS, SIZE).argsort(1).argsort(1).reshape(-1, 1)
    return torch.where(order < SIZE / 2, -LEAST.claimed, LEAST.claimed)


def rounding() -> Tensor:
    return ROUNDING * torch.randn(GROUPS * SIZE, TOKENS, generator=torch.Generator().manual_seed(2))


def by_completion(method: str, change: Tensor | float) -> Tensor:
    """(B,) what each completion adds to the gradient."""
    advantage, phi = weights(objective(method), batch(change))
    return advantage * phi.sum(1)


def moved(method: str, change: Tensor) -> float:
    """Change of the gradient's weights, as a share of them."""
    true = by_completion(method, 0.0)
    return float((by_completion(method, change) - true).norm() / true.norm())


def test_claims_that_audits_tolerate_move_no_weight_among_the_completions_of_a_group_with_gepo() -> None:
    (_, true), (_, said) = (weights(objective("gepo"), batch(change)) for change in (0.0, tuned()))
    factor = (said[:, 0] / true[:, 0]).reshape(GROUPS, SIZE)
    assert float((factor / factor[:, :1] - 1).abs().max()) < 1e-5
    assert float(factor.log().abs().max()) <= LEAST.claimed + 1e-5


@pytest.mark.parametrize("method", ["gepo", "grpo"])
def test_claims_that_audits_tolerate_move_a_gradient_by_no_more_than_the_tolerance(method: str) -> None:
    assert 0.001 < moved(method, tuned()) < 1.1 * math.expm1(LEAST.claimed)


def test_a_replay_in_another_precision_moves_honest_weights_of_a_method_that_clips_close_to_1() -> None:
    assert moved("gepo", rounding()) < 0.01
    assert moved("gspo", rounding()) > 0.1
