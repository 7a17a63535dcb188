"""The sequence MDP: everything about it is known, so everything can be checked."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lab.studies.gradient import mdp

horizons = st.integers(2, 6)
distances = st.sampled_from([0.0, 0.003, 0.03, 0.3, 1.0])
seeds = st.integers(0, 1000)


@given(horizons, distances, seeds)
@settings(max_examples=20, deadline=None)
def test_the_sequences_are_all_that_there_are_and_lengths_are_ragged(
    horizon: int, kl: float, seed: int
) -> None:
    world = mdp.instance(horizon, kl, seed)
    for logits in (world.sampler, world.learner):
        assert float(mdp.log_probs(world.tree, logits).sum(-1).exp().sum()) == pytest.approx(1, abs=1e-12)
    assert set(world.tree.mask.sum(-1).tolist()) == set(range(1, horizon + 1))


@given(horizons, distances, seeds)
@settings(max_examples=20, deadline=None)
def test_the_learner_stands_as_far_away_as_was_asked(horizon: int, kl: float, seed: int) -> None:
    world = mdp.instance(horizon, kl, seed)
    assert mdp.divergence(world.tree, world.sampler, world.learner) == pytest.approx(kl, rel=1e-6, abs=1e-12)
    assert kl > 0 or torch.equal(world.sampler, world.learner)


@given(horizons, seeds)
@settings(max_examples=10, deadline=None)
def test_only_the_learner_depends_on_the_distance(horizon: int, seed: int) -> None:
    near, far = mdp.instance(horizon, 0.01, seed), mdp.instance(horizon, 0.3, seed)
    assert torch.equal(near.sampler, far.sampler) and torch.equal(near.reward, far.reward)
    assert not torch.equal(near.learner, far.learner)


@given(horizons, seeds)
@settings(max_examples=20, deadline=None)
def test_the_sampler_is_right_sometimes_and_never_mostly(horizon: int, seed: int) -> None:
    world = mdp.instance(horizon, 0.0, seed)
    right = world.reward == 1
    assert 0 < float(mdp.log_probs(world.tree, world.sampler).sum(-1).exp()[right].sum()) < 2 * mdp.CORRECT
    assert bool(world.tree.ended[right].all()) and float(world.reward.min()) >= 0


@pytest.mark.parametrize("kl", [0.0, 0.1, 1.0])
@pytest.mark.parametrize("seed", [0, 1])
def test_the_exact_gradient_is_that_of_finite_differences(kl: float, seed: int) -> None:
    world = mdp.instance(4, kl, seed)
    gradient = mdp.exact(world.tree, world.learner, world.reward)[1]
    step = 1e-6
    for node in range(world.tree.nodes):
        for symbol in range(mdp.SYMBOLS):
            nudge = torch.zeros_like(world.learner)
            nudge[node, symbol] = step
            up, down = (
                mdp.exact(world.tree, world.learner + way * nudge, world.reward)[0] for way in (1, -1)
            )
            assert float(gradient[node, symbol]) == pytest.approx(float((up - down) / (2 * step)), abs=1e-8)


def test_gradients_are_those_of_autograd() -> None:
    world = mdp.instance(4, 0.1, 3)
    sequence, owner = torch.tensor([0, 5, 5, 12, 20]), torch.tensor([0, 0, 1, 1, 1])
    coefficient = torch.randn(5, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    found = mdp.gradients(world.tree, world.learner, sequence, coefficient, owner, 2)
    for number in (0, 1):
        logits = world.learner.clone().requires_grad_()
        (mdp.log_probs(world.tree, logits)[sequence] * coefficient)[owner == number].sum().backward()
        torch.testing.assert_close(found[number].view(mdp.SYMBOLS, -1).T, logits.grad)
