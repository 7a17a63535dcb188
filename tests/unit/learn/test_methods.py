"""Every method against the literal rendering of its paper's surrogate in `learn_literals`, and against golden
numbers."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from learn_literals import LITERALS, VARIANTS, World
from torch import Tensor

from swarm.learn.objectives import OBJECTIVES, Batch, Objective, loss, objective
from swarm.learn.parts import CENTRES, RATIOS, REDUCTIONS, SCALES
from swarm.learn.trust_region import TRUSTS

GOLDEN = json.loads(Path(__file__).with_name("golden_methods.json").read_text())

CASES = {name: (OBJECTIVES[name], LITERALS[name]) for name in OBJECTIVES if name in LITERALS} | {
    f"{name} {options}": (objective(name, options), literal) for name, options, literal in VARIANTS
}


def draw(seed: int) -> Batch:
    """From hardly moved to far gone; the last two are longer, one of them with few large steps among many
    small ones."""
    gen = torch.Generator().manual_seed(seed)
    sizes, length = torch.tensor([4, 3, 1, 2] if seed < 5 else [8, 5, 2, 1]), (5 if seed < 5 else 12)
    rows = int(sizes.sum())
    logq = -torch.rand(rows, length, generator=gen) * 2 - 0.05
    scale, power = ((3e-4, 1), (0.1, 1), (0.3, 1), (0.6, 1), (1.2, 1), (0.02, 1), (0.1, 3))[seed]
    logp, prox, ref = (logq + scale * torch.randn(rows, length, generator=gen) ** power for _ in range(3))
    return Batch(
        logp.clamp(max=-1e-3),
        logq,
        mask=(torch.arange(length) < torch.randint(1, length + 1, (rows,), generator=gen)[:, None]).float(),
        reward=torch.randint(0, 2 + seed % 3, (rows,), generator=gen) / (1 + seed % 3),
        group=torch.repeat_interleave(torch.arange(4) * 7 + 3, sizes),
        prox=prox,
        ref=ref,
        lag=torch.randint(0, 5, (rows,), generator=gen),
        horizon=8.0,
    )


def world(batch: Batch, logp: Tensor) -> World:
    def rows(values: Tensor) -> list:  # type: ignore[type-arg]
        return [list(row[: int(mask.sum())]) for row, mask in zip(values, batch.mask, strict=True)]

    held, logq, prox = (
        [[float(v) for v in row] for row in rows(values)] for values in (batch.logp, batch.logq, batch.prox)
    )
    lag = [max(float(v), 1.0) for v in batch.lag]
    return World(
        rows(logp), held, logq, prox, lag, batch.reward.tolist(), batch.group.tolist(), batch.horizon
    )


def gradient(method: Objective, batch: Batch) -> Tensor:
    logp = batch.logp.clone().requires_grad_(True)
    loss(method, replace(batch, logp=logp)).value.backward()
    assert logp.grad is not None
    return logp.grad


def test_every_method_and_every_part_has_a_literal() -> None:
    assert not LITERALS.keys() ^ OBJECTIVES.keys()
    methods = [method for method, _ in CASES.values()]
    for table, used in [
        (CENTRES, {m.advantage.centre for m in methods}),
        (SCALES, {m.advantage.scale for m in methods}),
        (RATIOS, {m.ratio.kind for m in methods}),
        (TRUSTS, {m.trust.kind for m in methods}),
        (REDUCTIONS, {m.reduce for m in methods}),
    ]:
        assert used == set(table)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("seed", range(7))
def test_the_gradient_is_that_of_the_literal_surrogate(case: str, seed: int) -> None:
    method, literal = CASES[case]
    batch = draw(seed)
    logp = batch.logp.double().requires_grad_(True)
    value = -literal(world(batch, logp))
    value.backward()
    assert logp.grad is not None
    mine = gradient(method, batch)
    torch.testing.assert_close(mine, logp.grad.float(), rtol=2e-4, atol=2e-6)
    for i, t in [(0, 0), (5, 0), (9, 0)]:
        step = torch.zeros_like(logp)
        step[i, t] = 1e-6
        with torch.no_grad():
            up, down = (float(literal(world(batch, logp + sign * step))) for sign in (1, -1))
        assert float(mine[i, t]) == pytest.approx((down - up) / 2e-6, rel=1e-3, abs=1e-5)


def test_disco_on_one_prompt_of_equal_lengths_has_the_papers_budget_over_all_tokens() -> None:
    batch = replace(draw(2), mask=torch.ones(10, 5), group=torch.zeros(10, dtype=torch.long))
    penalty = gradient(OBJECTIVES["disco"], batch) - gradient(objective("disco", {"kl": 0}), batch)
    drift = float((batch.logq - batch.logp).mean())
    torch.testing.assert_close(
        penalty, torch.full((10, 5), -max(1e3 * (drift - 1e-4), 0) / 50), rtol=1e-3, atol=1e-5
    )


@pytest.mark.parametrize("case", [*LITERALS])
def test_golden_numbers(case: str) -> None:
    """GradientAccumulator and length of the gradient on a batch written by hand. Who changes a formula on
    purpose changes golden_methods.json."""
    tensors = {name: torch.tensor(rows) for name, rows in GOLDEN["batch"].items()}
    probabilities = {name: tensors.pop(name).log() for name in ("logp", "logq", "prox", "ref")}
    batch = Batch(**probabilities, **tensors, horizon=4.0)
    grad = gradient(OBJECTIVES[case], batch)
    assert [float(grad.sum()), float(grad.norm())] == pytest.approx(
        GOLDEN["methods"][case], rel=2e-5, abs=2e-6
    )
