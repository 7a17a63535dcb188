"""Every method against slow literal renderings, autograd and finite differences; the invariants that a swarm relies on."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from swarm.learn.objectives import OBJECTIVES, Batch, Objective, Total, loss, merge, objective, weights

ALL = sorted(OBJECTIVES)


def make(seed: int = 0, sizes: tuple[int, ...] = (4, 3, 1), length: int = 6, shift: float = 0.3, **fields: object) -> Batch:
    gen = torch.Generator().manual_seed(seed)
    rows = sum(sizes)
    logq = -torch.rand(rows, length, generator=gen) * 2 - 0.05
    logp = (logq + shift * torch.randn(rows, length, generator=gen)).clamp(max=-1e-3)
    lengths = torch.randint(1, length + 1, (rows,), generator=gen)
    return Batch(
        logp=logp,
        logq=logq,
        mask=(torch.arange(length) < lengths[:, None]).float(),
        reward=torch.randint(0, 2, (rows,), generator=gen).float(),
        group=torch.repeat_interleave(torch.arange(len(sizes)) * 7 + 3, torch.tensor(sizes)),
        horizon=float(length),
        **fields,  # type: ignore[arg-type]
    )


def gradient(method: Objective, batch: Batch) -> torch.Tensor:
    logp = batch.logp.clone().requires_grad_(True)
    loss(method, replace(batch, logp=logp)).value.backward()
    assert logp.grad is not None
    return logp.grad


# --- a slow literal rendering, one sample at a time, in python floats and torch scalars -------------------------------


def literal(method: Objective, batch: Batch, logp: torch.Tensor) -> torch.Tensor:
    """The surrogate that each paper maximises (negated), with min(w A, clip(w) A) written out; differentiable in logp."""
    groups = {g: [i for i in range(len(batch.reward)) if int(batch.group[i]) == g] for g in set(batch.group.tolist())}
    tokens = {i: [t for t in range(batch.mask.shape[1]) if batch.mask[i, t] > 0] for i in range(len(batch.reward))}
    total = torch.zeros((), dtype=torch.float64)
    for members in groups.values():
        rewards = [float(batch.reward[i]) for i in members]
        mean = sum(rewards) / len(rewards)
        std = math.sqrt(sum((r - mean) ** 2 for r in rewards) / max(len(rewards) - 1, 1))
        full = method.ratio.score == "full"
        lq = {i: sum(float(batch.logq[i, t]) for t in tokens[i]) / (1 if full else len(tokens[i])) for i in members}
        q = {i: math.exp(lq[i]) for i in members}
        expected = sum(x * x for x in q.values()) / sum(q.values())
        for i, reward in zip(members, rewards, strict=True):
            advantage = reward if method.advantage.centre == "none" else reward - mean
            if method.advantage.scale == "group-std":
                advantage /= std + 1e-6
            lp = sum(logp[i, t] for t in tokens[i]) / (1 if full else len(tokens[i]))
            geometric = sum(float(logp[i, t].detach() - batch.logq[i, t]) for t in tokens[i]) / len(tokens[i])
            if method.ratio.kind == "unit":
                terms = [logp[i, t] * advantage for t in tokens[i]]
            elif method.ratio.kind == "token":
                terms = [clipped(method, torch.exp(logp[i, t] - batch.logq[i, t]), advantage) for t in tokens[i]]
            else:
                w = torch.exp(lp - lq[i]) if method.ratio.kind == "sequence" else torch.exp(lp) / expected
                term = clipped(method, w, advantage) if method.trust.kind == "clip" else w * advantage
                if method.trust.kind == "gate":
                    moved = math.exp(geometric)
                    if (advantage > 0 and moved > 1 + method.trust.hi) or (advantage < 0 and moved < 1 - method.trust.lo):
                        term = term * 0
                terms = [term]
            divide = {"sequence-mean": len(terms), "sequence-sum": 1, "constant": batch.horizon}[method.reduce]
            total = total + sum(terms) / divide
    return -total / len(batch.reward)


def clipped(method: Objective, w: torch.Tensor, advantage: float) -> torch.Tensor:
    return torch.minimum(w * advantage, w.clamp(1 - method.trust.lo, 1 + method.trust.hi) * advantage)


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("seed", range(4))
def test_the_gradient_is_autograds_of_the_literal_surrogate(name: str, seed: int) -> None:
    batch = make(seed)
    logp = batch.logp.double().requires_grad_(True)
    literal(OBJECTIVES[name], batch, logp).backward()
    torch.testing.assert_close(gradient(OBJECTIVES[name], batch), logp.grad.float(), rtol=2e-4, atol=1e-6)


@pytest.mark.parametrize("name", ALL)
def test_the_gradient_is_the_finite_difference_of_the_literal_surrogate(name: str) -> None:
    batch, step = make(11), 1e-6
    mine = gradient(OBJECTIVES[name], batch)
    for i, t in [(0, 0), (2, 1), (5, 0), (7, 0)]:
        up, down = batch.logp.double(), batch.logp.double()
        up[i, t] += step
        down[i, t] -= step
        slope = (literal(OBJECTIVES[name], batch, up) - literal(OBJECTIVES[name], batch, down)) / (2 * step)
        assert float(mine[i, t]) == pytest.approx(float(slope), rel=1e-3, abs=1e-5)


@pytest.mark.parametrize("score", ["geometric", "full"])
def test_gepo_weights_equal_a_literal_rendering_of_the_formula(score: str) -> None:
    batch = make(3, sizes=(5, 4))
    _, phi = weights(objective("gepo_noclip", {"score": score}), batch)
    for g in (3, 10):
        members = [i for i in range(9) if int(batch.group[i]) == g]
        p, q = {}, {}
        for i in members:
            n = int(batch.mask[i].sum())
            cut = n if score == "geometric" else 1
            p[i] = math.exp(float(batch.logp[i, :n].sum()) / cut)
            q[i] = math.exp(float(batch.logq[i, :n].sum()) / cut)
        expectation = sum(q[i] / sum(q.values()) * q[i] for i in members)
        for i in members:
            assert float(phi[i, 0]) == pytest.approx(p[i] / expectation, rel=1e-4)


def test_gepo_with_equal_sampler_probabilities_is_gspo() -> None:
    batch = make(1, sizes=(4, 4))
    batch = replace(batch, logq=torch.full_like(batch.logq, -0.7))
    options = {"trust": "free", "centre": "group-mean", "scale": "none"}
    torch.testing.assert_close(weights(objective("gepo_noclip"), batch)[1], weights(objective("gspo", options), batch)[1])


def test_gepo_in_groups_of_one_is_gspo() -> None:
    batch = make(1, sizes=(1, 1, 1))
    torch.testing.assert_close(
        weights(objective("gepo_noclip"), batch)[1], weights(objective("gspo", {"trust": "free"}), batch)[1]
    )


def test_the_gate_zeroes_exactly_the_samples_that_moved_far_enough_with_their_advantage() -> None:
    drift = torch.tensor([0.3, 0.1, -0.3, -0.1, 0.3, -0.3]).exp().log()
    reward = torch.tensor([1.0, 1.0, 1.0, 0.0, 0.0, 0.0])
    logq = torch.full((6, 2), -1.0)
    batch = Batch(logq + drift[:, None], logq, torch.ones(6, 2), reward, torch.zeros(6, dtype=torch.long))
    _, phi = weights(objective("gepo"), batch)
    # 0: up and wanted up, too far; 5: down and wanted down, too far; 2 and 4 moved against their advantage.
    assert (phi[:, 0] == 0).tolist() == [True, False, False, False, False, True]
    _, wide = weights(objective("gepo", {"eps": 0.5}), batch)
    assert not (wide == 0).any()


@pytest.mark.parametrize("name", ALL)
@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 1000))
def test_the_order_of_samples_does_not_matter(name: str, seed: int) -> None:
    batch = make(seed)
    order = torch.randperm(len(batch.reward), generator=torch.Generator().manual_seed(seed))
    shuffled = replace(
        batch, **{f: getattr(batch, f)[order] for f in ("logp", "logq", "mask", "reward", "group")}  # type: ignore[arg-type]
    )
    torch.testing.assert_close(gradient(OBJECTIVES[name], shuffled), gradient(OBJECTIVES[name], batch)[order])


@pytest.mark.parametrize("name", ALL)
@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 1000), cut=st.integers(1, 3))
def test_whole_or_in_micro_batches_the_gradient_and_the_metrics_are_the_same(name: str, seed: int, cut: int) -> None:
    sizes = (4, 2, 1, 3)
    method = objective(name, {"kl": 0.1})
    batch = make(seed, sizes=sizes)
    split = sum(sizes[:cut])
    total = Total(len(sizes), len(batch.reward), int(batch.mask.sum()))
    parts, gradients = [], []
    for rows in (slice(0, split), slice(split, None)):
        part = replace(batch, total=total, **{f: getattr(batch, f)[rows] for f in ("logp", "logq", "mask", "reward", "group")})
        parts.append(loss(method, part))
        gradients.append(gradient(method, part))
    whole = loss(method, batch)
    torch.testing.assert_close(torch.cat(gradients), gradient(method, batch))
    torch.testing.assert_close(sum(part.value for part in parts), whole.value)
    assert merge(parts) == pytest.approx(whole.metrics, rel=1e-4, abs=1e-6)


@pytest.mark.parametrize("name", sorted(set(ALL) - {"reinforce"}))
def test_equal_rewards_teach_nothing(name: str) -> None:
    batch = replace(make(2), reward=torch.full((8,), 0.3))
    assert not gradient(OBJECTIVES[name], batch).any()
    assert loss(OBJECTIVES[name], batch).metrics["flat"] == 1.0


@pytest.mark.parametrize("name", ALL)
def test_what_lies_behind_the_mask_is_never_read(name: str) -> None:
    batch = make(4)
    dirty = batch.mask == 0
    spoiled = replace(
        batch, logp=batch.logp.masked_fill(dirty, math.nan), logq=batch.logq.masked_fill(dirty, math.inf), entropy=None
    )
    torch.testing.assert_close(gradient(OBJECTIVES[name], spoiled), gradient(OBJECTIVES[name], batch))
    assert loss(OBJECTIVES[name], spoiled).metrics == loss(OBJECTIVES[name], batch).metrics


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("side", ["logp", "logq"])
def test_an_impossible_token_leaves_everything_finite(name: str, side: str) -> None:
    batch = make(5)
    values = getattr(batch, side).clone()
    values[1, 0] = -torch.inf
    spoiled = replace(batch, **{side: values})
    assert torch.isfinite(gradient(objective(name, {"kl": 0.1}), spoiled)).all()
    outcome = loss(OBJECTIVES[name], spoiled)
    assert torch.isfinite(outcome.value) and all(math.isfinite(v) for v in outcome.metrics.values())
    if side == "logq":
        assert not weights(OBJECTIVES[name], spoiled)[1][1].any()


@pytest.mark.parametrize("kind", ["k3", "k3-reversed"])
def test_the_kl_term_adds_the_gradient_of_its_formula(kind: str) -> None:
    batch = make(6)
    logp = batch.logp.clone().requires_grad_(True)
    d = (logp - batch.logq) if kind == "k3" else (batch.logq - logp)
    per_token = torch.where(batch.mask > 0, d.exp() - d - 1, 0.0)
    (0.1 * (per_token.sum(-1) / batch.mask.sum(-1)).mean()).backward()
    with_kl = gradient(objective("gepo", {"kl": 0.1, "kl_kind": kind}), batch)
    torch.testing.assert_close(with_kl - gradient(objective("gepo"), batch), logp.grad, rtol=1e-4, atol=1e-7)


def test_metrics_are_those_of_a_hand_counted_batch() -> None:
    logq = torch.log(torch.tensor([[0.5, 0.5], [0.25, 0.25], [0.5, 0.5], [0.5, 0.5]]))
    batch = Batch(logq, logq, torch.ones(4, 2), torch.tensor([1.0, 0.0, 1.0, 1.0]), torch.tensor([0, 0, 1, 1]))
    metrics = loss(objective("gepo_noclip"), batch).metrics
    w = [0.5 / (0.3125 / 0.75), 0.25 / (0.3125 / 0.75)]
    assert metrics["reward"] == 0.75 and metrics["flat"] == 0.5 and metrics["zero"] == 0.0 and metrics["length"] == 2.0
    assert metrics["kl"] == pytest.approx(0, abs=1e-7)
    assert metrics["weight_max"] == pytest.approx(w[0], rel=1e-5)
    assert metrics["ess"] == pytest.approx((sum(w) ** 2 / (2 * (w[0] ** 2 + w[1] ** 2)) + 1) / 2, rel=1e-5)
    assert metrics["weight_var"] == pytest.approx(((w[0] - w[1]) / 2) ** 2 / 2, rel=1e-4)


@pytest.mark.parametrize(
    ("name", "options", "says"),
    [
        ("gebo", {}, "did you mean 'gepo'"),
        ("gepo", {"epz": 0.1}, "did you mean 'eps'"),
        ("gepo", {"trust": "gates"}, "known: free, clip, gate"),
        ("gepo", {"eps": "wide"}, "has to be a number"),
    ],
)
def test_a_wrong_override_is_refused_with_the_nearest_right_one(name: str, options: dict[str, object], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        objective(name, options)  # type: ignore[arg-type]


def test_leave_one_out_compares_with_the_mean_of_the_others() -> None:
    batch = replace(make(0, sizes=(4,)), reward=torch.tensor([1.0, 0.0, 0.0, 1.0]))
    advantage, _ = weights(objective("gepo", {"centre": "leave-one-out"}), batch)
    torch.testing.assert_close(advantage, torch.tensor([2 / 3, -2 / 3, -2 / 3, 2 / 3]))
