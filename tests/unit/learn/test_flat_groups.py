"""A group without advantage has no gradient, by each method's parts, and leaves that of others as it is."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import pytest
import torch
from torch import Tensor

from swarm.learn.objectives import OBJECTIVES, Batch, Objective, loss, objective, total_of
from swarm.learn.parts import CENTRES, SCALES, Advantage

GROUPS, SIZE, TOKENS = 6, 4, 7
FLAT = {1: 1.0, 2: 0.0, 4: 0.3}
"""Group -> the reward of all its completions."""

METHODS = {**OBJECTIVES} | {
    f"{centre} {scale}": replace(OBJECTIVES["gepo"], advantage=Advantage(centre, scale))
    for centre in CENTRES
    for scale in SCALES
}


def drawn() -> Batch:
    """Groups far from their samplers; those of FLAT have equal rewards."""
    random = torch.Generator().manual_seed(4)
    rows = GROUPS * SIZE
    logp, logq, prox, ref = (-3 * torch.rand(rows, TOKENS, generator=random) - 0.01 for _ in range(4))
    reward = torch.rand(GROUPS, SIZE, generator=random)
    for group, level in FLAT.items():
        reward[group] = level
    lengths = torch.randint(1, TOKENS + 1, (rows, 1), generator=random)
    logq[SIZE] = -torch.inf  # a completion that its sampler cannot have drawn
    return Batch(
        logp,
        logq,
        mask=(torch.arange(TOKENS) < lengths).float(),
        reward=reward.flatten(),
        group=torch.arange(GROUPS).repeat_interleave(SIZE),
        prox=prox,
        ref=ref,
        lag=torch.randint(0, 5, (rows,), generator=random),
        horizon=8.0,
    )


def gradient(method: Objective, batch: Batch) -> Tensor:
    logp = batch.logp.clone().requires_grad_(True)
    loss(method, replace(batch, logp=logp)).value.backward()
    assert logp.grad is not None
    return logp.grad


def without(batch: Batch, left_out: Tensor) -> Batch:
    """The other completions of a batch, as a part of it."""
    cut: dict[str, Any] = {
        field.name: value[~left_out]
        for field in fields(batch)
        if isinstance(value := getattr(batch, field.name), Tensor)
    }
    return replace(batch, **cut, total=total_of(batch))


@pytest.mark.parametrize("name", METHODS)
def test_the_gradient_without_the_groups_that_teach_nothing_is_bit_for_bit_the_same(name: str) -> None:
    method, batch = METHODS[name], drawn()
    idle = torch.tensor([not method.teaches(group.tolist()) for group in batch.reward.view(GROUPS, SIZE)])
    rows = idle.repeat_interleave(SIZE)
    whole, alone = gradient(method, batch), gradient(method, without(batch, rows))
    assert torch.equal(whole[~rows], alone) and whole[~rows].any()
    assert not whole[rows].any()


def test_all_groups_of_equal_rewards_teach_nothing_where_they_have_neither_advantage_nor_kl() -> None:
    without_baseline = [name for name, method in OBJECTIVES.items() if method.advantage.centre == "none"]
    with_kl = [name for name, method in OBJECTIVES.items() if method.kl.weight > 0]
    for name, method in OBJECTIVES.items():
        assert method.teaches([0.3] * 8) == (name in [*without_baseline, *with_kl]), name
        assert method.teaches([0.0] * 8) == (name in with_kl), name
        assert method.is_flat([0.0] * 8) and method.teaches([0.0, 1.0]), name


def test_a_kl_term_teaches_a_group_that_has_no_advantage() -> None:
    pulled = objective("gepo", {"kl": 0.005})
    assert pulled.is_flat([1.0, 1.0]) and pulled.teaches([1.0, 1.0])
    assert gradient(pulled, drawn()).view(GROUPS, -1)[4].any()


def test_rewards_are_equal_as_exactly_as_a_batch_has_them() -> None:
    gepo = OBJECTIVES["gepo"]
    assert gepo.is_flat([0.1 + 0.2, 0.3]) and not gepo.is_flat([0.3, 0.3 + 1e-6])
    assert not gepo.is_flat([float("inf")] * 2)  # their distances from the mean are no numbers


def test_an_advantage_of_ones_own_may_teach_with_equal_rewards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(CENTRES, "half", lambda view, w: view.reward - 0.5)
    monkeypatch.setitem(SCALES, "shifted", lambda advantage, view: advantage + 1)
    for own in (Advantage("half"), Advantage("group-mean", "shifted")):
        assert replace(OBJECTIVES["gepo"], advantage=own).teaches([1.0, 1.0])
