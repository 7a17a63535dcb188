"""Every method against the literal rendering of its paper's surrogate in `learn_literals`, and against golden
numbers."""

from __future__ import annotations

import json
from collections.abc import Sequence
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


MOVED = ((4, 3e-4, 1), (3, 0.1, 1), (1, 0.3, 1), (2, 0.3, 1), (4, 0.6, 1), (3, 1.2, 1))
"""Of a batch's groups: completions, how far the learner is from the sampler in nats a token, and the power
that makes few steps large among many small ones."""

LONGER = ((8, 0.02, 1), (5, 0.1, 3), (2, 0.3, 1), (1, 0.1, 1))


def draw(seed: int, groups: Sequence[tuple[int, float, int]], length: int) -> Batch:
    """Groups from hardly moved to far gone."""
    gen = torch.Generator().manual_seed(seed)
    sizes = torch.tensor([size for size, _, _ in groups])
    rows = int(sizes.sum())
    scale, power = (
        torch.tensor(each).repeat_interleave(sizes)[:, None] for each in list(zip(*groups, strict=True))[1:]
    )
    logq = -torch.rand(rows, length, generator=gen) * 2 - 0.05
    logp, prox, ref = (logq + scale * torch.randn(rows, length, generator=gen) ** power for _ in range(3))
    return Batch(
        logp.clamp(max=-1e-3),
        logq,
        mask=(torch.arange(length) < torch.randint(1, length + 1, (rows,), generator=gen)[:, None]).float(),
        reward=torch.randint(0, 4, (rows,), generator=gen) / 3,
        group=torch.repeat_interleave(torch.arange(len(sizes)) * 7 + 3, sizes),
        prox=prox,
        ref=ref,
        lag=torch.randint(0, 5, (rows,), generator=gen),
        horizon=8.0,
    )


BATCHES = {"short": draw(0, MOVED, 5), "long": draw(5, LONGER, 12)}


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


@pytest.mark.parametrize("batch", BATCHES.values(), ids=BATCHES)
@pytest.mark.parametrize("case", CASES)
def test_the_gradient_is_that_of_the_literal_surrogate(case: str, batch: Batch) -> None:
    method, literal = CASES[case]
    logp = batch.logp.double().requires_grad_(True)
    (-literal(world(batch, logp))).backward()
    assert logp.grad is not None
    mine = gradient(method, batch)
    torch.testing.assert_close(mine, logp.grad.float(), rtol=2e-4, atol=2e-6)
    # The literal's own gradient is that of its value, as far as nothing is held in it.
    along = torch.randn(logp.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    with torch.no_grad():
        up, down = (float(literal(world(batch, logp + step * along))) for step in (1e-6, -1e-6))
    assert float((mine * along).sum()) == pytest.approx((down - up) / 2e-6, rel=1e-3, abs=1e-5)


def test_disco_on_one_prompt_of_equal_lengths_has_the_papers_budget_over_all_tokens() -> None:
    batch = draw(2, ((10, 0.3, 1),), 5)
    batch = replace(batch, mask=torch.ones(10, 5))
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
