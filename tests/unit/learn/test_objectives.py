"""What holds for every objective, whatever its formula (`test_methods` has the formulas), and where a method
is another one."""

from __future__ import annotations

import math
from dataclasses import fields, replace
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from swarm.learn.kl import KL_SLOPES
from swarm.learn.learners.batch import view_of
from swarm.learn.objectives import OBJECTIVES, Batch, Objective, Total, loss, merge, objective, weights
from swarm.learn.parts import CENTRES, REDUCTIONS

ALL = sorted(OBJECTIVES)
EXPECTATIONS = {name for name in ALL if OBJECTIVES[name].ratio.kind == "group-expectation"}
ROWS = ("logp", "logq", "mask", "reward", "group", "prox", "ref", "lag", "entropy")
few = settings(max_examples=4)
seeds = st.integers(0, 1000)


def make(seed: int = 0, sizes: tuple[int, ...] = (4, 3, 1), length: int = 6, shift: float = 0.3) -> Batch:
    gen = torch.Generator().manual_seed(seed)
    rows = sum(sizes)
    logq = -torch.rand(rows, length, generator=gen) * 2 - 0.05
    logp, prox, ref = (
        (logq + shift * torch.randn(rows, length, generator=gen)).clamp(max=-1e-3) for _ in range(3)
    )
    return Batch(
        logp,
        logq,
        prox=prox,
        ref=ref,
        entropy=torch.rand(rows, length, generator=gen),
        horizon=float(length),
        mask=(torch.arange(length) < torch.randint(1, length + 1, (rows,), generator=gen)[:, None]).float(),
        reward=torch.randint(0, 3, (rows,), generator=gen) / 2,
        group=torch.repeat_interleave(torch.arange(len(sizes)) * 7 + 3, torch.tensor(sizes)),
        lag=torch.randint(0, 9, (rows,), generator=gen),
    )


def rows(batch: Batch, chosen: Tensor) -> Batch:
    return replace(batch, **{name: getattr(batch, name)[chosen] for name in ROWS})


def gradient(method: Objective, batch: Batch) -> Tensor:
    logp = batch.logp.clone().requires_grad_(True)
    loss(method, replace(batch, logp=logp)).value.backward()
    assert logp.grad is not None
    return logp.grad


def phi_of(name: str, batch: Batch, **options: float | str | bool) -> Tensor:
    return weights(objective(name, options), batch)[1]


# --- of every method ----------------------------------------------------------------------------------------


def test_rows_are_all_there_is_in_a_batch() -> None:
    assert {f.name for f in fields(Batch)} == {*ROWS, "horizon", "total"}


@pytest.mark.parametrize("name", ALL)
@few
@given(seed=seeds)
def test_the_order_of_samples_does_not_matter(name: str, seed: int) -> None:
    batch = make(seed)
    order = torch.randperm(len(batch.reward), generator=torch.Generator().manual_seed(seed))
    shuffled = gradient(OBJECTIVES[name], rows(batch, order))
    torch.testing.assert_close(shuffled, gradient(OBJECTIVES[name], batch)[order], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize(
    "options", [{"kl": 0.1}, {"kl": 0.1, "kl_against": "ref", "reduce": "prompt-mean"}], ids=["", "ref"]
)
@few
@given(seed=seeds, cuts=st.sets(st.integers(1, 3), min_size=1))
def test_whole_or_in_micro_batches_the_gradient_and_the_metrics_are_the_same(
    name: str, options: dict[str, float | str | bool], seed: int, cuts: set[int]
) -> None:
    sizes, method = (4, 2, 1, 3), objective(name, options)
    batch = make(seed, sizes)
    edges = [0, *(sum(sizes[:cut]) for cut in sorted(cuts)), sum(sizes)]
    starts = [sum(sizes[:k]) for k in range(5)]
    lengths, rewards = (
        [v[a:b].tolist() for a, b in pairwise(starts)] for v in (batch.mask.sum(-1), batch.reward)
    )
    total = Total.of(lengths, rewards)
    chunks = [replace(rows(batch, torch.arange(a, b)), total=total) for a, b in pairwise(edges)]
    parts, whole = [loss(method, chunk) for chunk in chunks], loss(method, batch)
    torch.testing.assert_close(
        torch.cat([gradient(method, c) for c in chunks]), gradient(method, batch), rtol=1e-4, atol=1e-6
    )
    torch.testing.assert_close(sum(part.value for part in parts), whole.value, rtol=1e-4, atol=1e-5)
    assert merge(parts) == pytest.approx(whole.metrics, rel=1e-4, abs=1e-6)


@pytest.mark.parametrize("name", ALL)
def test_equal_rewards_teach_nothing_but_reinforce(name: str) -> None:
    batch = replace(make(2), reward=torch.full((8,), 0.3))
    grad = gradient(objective(name, {"kl": 0}), batch)
    assert bool(grad.any()) == (name == "reinforce")
    assert loss(OBJECTIVES[name], batch).metrics["flat"] == 1.0


@pytest.mark.parametrize("name", ALL)
def test_a_group_of_one_teaches_nothing_but_reinforce(name: str) -> None:
    batch = replace(make(3, (1, 1, 1)), reward=torch.tensor([1.0, 0.0, 0.5]))
    grad = gradient(objective(name, {"kl": 0}), batch)
    assert torch.isfinite(grad).all()
    assert bool(grad.any()) == (name == "reinforce")


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("against", ["sampler", "ref"])
def test_what_lies_behind_the_mask_is_never_read(name: str, against: str) -> None:
    batch, method = make(4), objective(name, {"kl": 0.1, "kl_against": against})
    dirt = {"logp": math.nan, "logq": math.inf, "prox": math.nan, "ref": -math.inf, "entropy": math.nan}
    spoiled = replace(
        batch, **{f: getattr(batch, f).masked_fill(batch.mask == 0, bad) for f, bad in dirt.items()}
    )
    assert torch.equal(gradient(method, spoiled), gradient(method, batch))
    assert loss(method, spoiled).metrics == loss(method, batch).metrics


@pytest.mark.parametrize("name", ALL)
def test_more_padding_changes_nothing(name: str) -> None:
    batch, wider = make(5), make(5)
    for field in ("logp", "logq", "mask", "prox", "ref", "entropy"):
        wider = replace(wider, **{field: torch.nn.functional.pad(getattr(batch, field), (0, 5))})
    assert batch.mask.sum(-1).unique().numel() > 2
    torch.testing.assert_close(gradient(OBJECTIVES[name], wider)[:, :6], gradient(OBJECTIVES[name], batch))


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
def test_weights_are_those_of_float32_whatever_comes_in(name: str, dtype: torch.dtype) -> None:
    batch, method = make(6), OBJECTIVES[name]
    tensors = {
        f: getattr(batch, f).to(dtype) for f in ("logp", "logq", "mask", "reward", "prox", "ref", "entropy")
    }
    narrow, single = (
        replace(batch, **tensors),
        replace(batch, **{f: value.float() for f, value in tensors.items()}),
    )
    for mine, expected in zip(weights(method, narrow), weights(method, single), strict=True):
        assert mine.dtype == torch.float32
        assert torch.equal(mine, expected)
    assert float(loss(method, narrow).value) == float(loss(method, single).value)
    grad = gradient(method, narrow)
    torch.testing.assert_close(grad, gradient(method, single).to(dtype), rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("shift", [5.0, 60.0])
def test_policies_far_apart_leave_everything_finite(name: str, shift: float) -> None:
    batch = make(7, length=40, shift=shift)
    batch = replace(
        batch, logp=batch.logq + shift * torch.randn(8, 40, generator=torch.Generator().manual_seed(1))
    )
    assert torch.isfinite(gradient(objective(name, {"kl": 0.1}), batch)).all()
    outcome = loss(OBJECTIVES[name], batch)
    assert torch.isfinite(outcome.value) and all(math.isfinite(v) for v in outcome.metrics.values())


# --- what cannot have been sampled --------------------------------------------------------------------------


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize(
    ("side", "bad"), [("logp", -math.inf), ("both", -math.inf), ("logq", -math.inf), ("logq", math.nan)]
)
def test_an_impossible_token_leaves_everything_finite(name: str, side: str, bad: float) -> None:
    batch, at = make(8), torch.zeros(8, 6, dtype=torch.bool)
    at[1, 0] = True
    spoiled = replace(
        batch, **{f: getattr(batch, f).masked_fill(at, bad) for f in ("logp", "logq") if side in (f, "both")}
    )
    for kind in KL_SLOPES:
        assert torch.isfinite(gradient(objective(name, {"kl": 0.1, "kl_kind": kind}), spoiled)).all()
    outcome = loss(OBJECTIVES[name], spoiled)
    assert torch.isfinite(outcome.value) and all(math.isfinite(v) for v in outcome.metrics.values())


@pytest.mark.parametrize("name", ALL)
@few
@given(seed=seeds, kind=st.sampled_from(sorted(KL_SLOPES)), against=st.sampled_from(["sampler", "ref"]))
def test_of_an_impossible_completion_only_reward_and_length_are_read(
    name: str, seed: int, kind: str, against: str
) -> None:
    """It has no gradient of its own, not even of the KL, and what it or its sampler said elsewhere moves
    nobody else's."""
    batch, method = make(seed), objective(name, {"kl": 0.1, "kl_kind": kind, "kl_against": against})
    at = torch.zeros(8, 6, dtype=torch.bool)
    at[1, 0] = True
    one = replace(batch, logq=batch.logq.masked_fill(at, -torch.inf))
    other = replace(one, logp=one.logp.clone(), logq=one.logq.clone())
    other.logp[1], other.logq[1, 1:] = -3 * torch.rand(6), -3 * torch.rand(5)
    assert not gradient(method, one)[1].any()
    assert torch.equal(gradient(method, one), gradient(method, other))
    assert not weights(method, one)[1][1].any()


@pytest.mark.parametrize("name", sorted(set(ALL) - {"tempered"}))
@few
@given(seed=seeds)
def test_the_others_weigh_as_if_an_impossible_completion_were_absent(name: str, seed: int) -> None:
    """Where a weight is over a mean of the group, the absent one counts as a zero in that mean: G / (G - 1)
    as much. (In `tempered` as a member that is not effective: it may lower tau.) Its reward is the group's
    mean here, so that signs stay.
    """
    gone = torch.arange(8) != 4
    batch = replace(make(seed), reward=torch.tensor([1.0, 0.0, 0.0, 1.0, 0.5, 0.0, 1.0, 1.0]))
    spoiled = replace(batch, logq=batch.logq.masked_fill(~gone[:, None], -torch.inf))
    factor = torch.tensor([1.0] * 4 + [1.5] * 2 + [1.0])[:, None] if name in {"snis", "gepo_mean"} else 1.0
    phi, without = phi_of(name, spoiled), phi_of(name, rows(batch, gone))
    torch.testing.assert_close(phi[gone], without * factor)


# --- symmetries and reductions ------------------------------------------------------------------------------

PROBABILITIES = {"dppo", "prime_rl"}
"""They compare probabilities themselves, not their ratio; a full score adds as often as a completion is
long."""

FULL = {name for name in EXPECTATIONS if OBJECTIVES[name].ratio.score == "full"}


@pytest.mark.parametrize("name", ALL)
def test_a_common_shift_of_both_policies_matters_to_those_that_compare_probabilities(name: str) -> None:
    batch = make(9, shift=0.6)
    moved = replace(batch, **{f: getattr(batch, f) - 2 for f in ("logp", "logq", "prox", "ref")})
    same = torch.allclose(
        gradient(OBJECTIVES[name], moved), gradient(OBJECTIVES[name], batch), rtol=1e-3, atol=1e-6
    )
    assert same == (name not in PROBABILITIES | FULL)


@pytest.mark.parametrize("name", ALL)
def test_on_policy_all_but_gepo_and_mhpo_are_reinforce_with_their_advantage(name: str) -> None:
    batch, method = make(10), OBJECTIVES[name]
    batch = replace(batch, logp=batch.logq.clone(), prox=None)
    advantage, phi = weights(method, batch)
    if name == "mhpo":
        shrink = math.exp(-(math.log(2) ** 1.5) - (math.log(2) / 0.8) ** 2)
        torch.testing.assert_close(phi, batch.mask * shrink)
    elif name in EXPECTATIONS:
        assert not torch.allclose(phi, batch.mask)
    else:
        torch.testing.assert_close(phi, batch.mask)
        view = view_of(batch)
        expected = -REDUCTIONS[method.reduce](view) * advantage[:, None] * batch.mask
        torch.testing.assert_close(gradient(method, batch), expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", ["gepo_noclip", "gepo_mix", "gepo_mean"])
def test_with_equal_sampler_probabilities_or_alone_in_its_group_gepo_weighs_as_gspo(name: str) -> None:
    batch = make(1, (4, 4))
    batch = replace(batch, logq=torch.full_like(batch.logq, -0.7))
    torch.testing.assert_close(phi_of(name, batch, trust="free"), phi_of("gspo", batch, trust="free"))
    batch = make(1, (1, 1, 1))
    torch.testing.assert_close(phi_of(name, batch, trust="free"), phi_of("gspo", batch, trust="free"))


def test_the_mix_goes_from_gepo_to_gspo() -> None:
    batch = make(12)
    torch.testing.assert_close(phi_of("gepo_mix", batch, mix=0), phi_of("gepo", batch))
    torch.testing.assert_close(
        phi_of("gepo_mix", batch, mix=1, trust="free"), phi_of("gspo", batch, trust="free")
    )


def test_the_gepo_of_learner_probabilities_has_mean_weight_one_under_the_samplers() -> None:
    batch = replace(make(13, (5,)), mask=torch.ones(5, 6))
    w, q = phi_of("gepo_eqp", batch, trust="free")[:, 0], batch.logq.mean(-1).exp()
    assert float((w * q).sum() / q.sum()) == pytest.approx(1, rel=1e-5)


def test_decoupled_and_a3po_are_ppo_where_the_proximal_policy_is_the_sampler() -> None:
    batch = make(14, shift=0.6)
    ppo = phi_of("bnpo", batch)
    torch.testing.assert_close(phi_of("decoupled", replace(batch, prox=batch.logq)), ppo)
    torch.testing.assert_close(phi_of("a3po", replace(batch, lag=torch.ones(8))), ppo)
    torch.testing.assert_close(phi_of("a3po", replace(batch, lag=None)), ppo)


def test_decoupled_and_a3po_only_drop_above_five_where_the_proximal_policy_is_the_learner() -> None:
    batch = make(14, shift=1.5)
    band = phi_of("mis", batch, hi=4.0)
    torch.testing.assert_close(phi_of("decoupled", replace(batch, prox=None)), band)
    torch.testing.assert_close(phi_of("a3po", replace(batch, lag=torch.full((8,), 1e9))), band)


@few
@given(seed=seeds, shift=st.sampled_from([0.1, 0.3, 1.0, 3.0]), ess=st.sampled_from([0.3, 0.5, 0.9]))
def test_a_tempered_group_stays_as_effective_as_asked_or_has_token_ratios(
    seed: int, shift: float, ess: float
) -> None:
    batch = make(seed, (6,), shift=shift)
    phi = phi_of("tempered", batch, trust="free", ess=ess)
    w = phi.sum(-1) / batch.mask.sum(-1)
    effective = float(w.sum() ** 2 / (6 * (w**2).sum()))
    assert effective >= ess - 1e-4 or torch.allclose(phi, phi_of("tis", batch, trust="free"))


@few
@given(seed=seeds, shift=st.sampled_from([0.1, 0.6, 2.0]))
def test_m2po_drops_nothing_between_07_and_15_and_nothing_that_is_not_harmful(
    seed: int, shift: float
) -> None:
    batch = make(seed, shift=shift)
    advantage, phi = weights(OBJECTIVES["m2po"], batch)
    r = (batch.logp - batch.logq).exp() * batch.mask
    harmful = torch.where(advantage[:, None] > 0, r > 1, r < 1)
    kept = ((r > 0.7001) & (r < 1.4999)) | ~harmful
    torch.testing.assert_close(phi[kept], r[kept])


def test_m2po_drops_above_the_largest_harmful_step_whose_capped_second_moment_is_within_the_budget() -> None:
    up = torch.tensor([0.05] * 18 + [0.45, 0.5, 0.9])
    # Mean of min(x^2, X^2) over the 21: 0.036 at X = 0.5, 0.062 at 0.9. The other's tokens moved against its
    # advantage.
    drift = torch.stack([up, torch.full((21,), 0.05)])
    logq = torch.full((2, 21), -2.0)
    batch = Batch(
        logq + drift, logq, torch.ones(2, 21), torch.tensor([1.0, 0.0]), torch.zeros(2, dtype=torch.long)
    )
    assert (phi_of("m2po", batch) == 0).nonzero().tolist() == [[0, 20]]


@few
@given(seed=seeds, shift=st.sampled_from([0.1, 1.0, 3.0]))
def test_self_normalised_weights_have_mean_one_in_a_group(seed: int, shift: float) -> None:
    batch = make(seed, shift=shift)
    w = phi_of("snis", batch).amax(-1)
    for rows_of in batch.group.unique():
        assert float(w[batch.group == rows_of].mean()) == pytest.approx(1, rel=1e-4)


@pytest.mark.parametrize("name", ["snis", "seq_tis_wb"])
@few
@given(seed=seeds)
def test_a_weight_weighted_baseline_balances_the_weights_of_a_group(name: str, seed: int) -> None:
    batch = make(seed)
    advantage, phi = weights(OBJECTIVES[name], batch)
    balance = torch.zeros(20).index_add_(0, batch.group, advantage * phi.amax(-1))
    torch.testing.assert_close(balance, torch.zeros(20), rtol=0, atol=1e-5)


def test_a_weight_weighted_baseline_is_a_mean_however_small_the_weights_are() -> None:
    view = view_of(replace(make(0, (4, 2)), reward=torch.tensor([1.0, 0.0, 0.0, 0.0, 0.0, 1.0])))
    advantage = CENTRES["weight-weighted"](view, torch.tensor([0.1, 0.1, 0.1, 0.1, 0.0, 0.0]))
    torch.testing.assert_close(advantage, torch.tensor([0.75, -0.25, -0.25, -0.25, -0.5, 0.5]))


@pytest.mark.parametrize("size", [-1e4, -100.0, 100.0, 1e4])
def test_sums_of_exponentials_over_a_group_stay_finite(size: float) -> None:
    """Those of sequences are of hundreds of nats: exp underflows at -104 and overflows at 89."""
    view = view_of(make(0, (4, 1)))
    found = view.lse(torch.tensor([size, size, -torch.inf, -torch.inf, -torch.inf]))
    torch.testing.assert_close(found, torch.tensor([size + math.log(2), -torch.inf]))


@pytest.mark.parametrize(
    ("centre", "expected"),
    [
        ("none", [1, 0, 0, 1, 0.5]),
        ("group-mean", [0.5, -0.5, -0.5, 0.5, 0]),
        ("leave-one-out", [2 / 3, -2 / 3, -2 / 3, 2 / 3, 0]),
        ("length-weighted", [0.4, -0.6, -0.6, 0.4, 0]),
    ],
)
def test_a_centre_is_what_a_hand_counts(centre: str, expected: list[float]) -> None:
    mask = torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0], [1, 1, 0, 0], [1, 1, 0, 0], [1, 0, 0, 0]])
    batch = replace(make(0, (4, 1), 4), reward=torch.tensor([1.0, 0.0, 0.0, 1.0, 0.5]), mask=mask)
    advantage, _ = weights(objective("grpo", {"centre": centre, "scale": "none"}), batch)
    torch.testing.assert_close(advantage, torch.tensor(expected))


def test_a_batch_of_one_group_is_not_scaled_by_what_groups_differ_in() -> None:
    batch = replace(make(0, (4,)), reward=torch.tensor([1.0, 0.0, 0.0, 0.0]))
    advantage, _ = weights(objective("grpo", {"centre": "group-mean", "scale": "beta"}), batch)
    torch.testing.assert_close(advantage, torch.tensor([0.75, -0.25, -0.25, -0.25]))


def test_disco_weighs_prompts_alike_however_many_completions_they_have() -> None:
    batch = replace(make(15, (6, 2)), reward=torch.tensor([1.0, 0, 0, 0, 1, 0, 1, 0]))
    grad = gradient(objective("disco", {"kl": 0}), batch)
    right = grad[batch.reward == 1].sum(-1)
    torch.testing.assert_close(right, -torch.tensor([1 / 4, 1 / 4, 1 / 2]))
    assert float(grad.sum()) == pytest.approx(0, abs=1e-6)


def test_the_gate_zeroes_exactly_the_samples_that_moved_far_enough_with_their_advantage() -> None:
    drift = torch.tensor([0.3, 0.1, -0.3, -0.1, 0.3, -0.3])
    reward = torch.tensor([1.0, 1.0, 1.0, 0.0, 0.0, 0.0])
    logq = torch.full((6, 2), -1.0)
    batch = Batch(logq + drift[:, None], logq, torch.ones(6, 2), reward, torch.zeros(6, dtype=torch.long))
    # 0: up and wanted up, too far; 5: down and wanted down, too far; 2 and 4 moved against their advantage.
    assert (phi_of("gepo", batch)[:, 0] == 0).tolist() == [True, False, False, False, False, True]
    assert not (phi_of("gepo", batch, eps=0.5) == 0).any()


@pytest.mark.parametrize("against", ["sampler", "ref"])
@pytest.mark.parametrize("kind", ["k2", "k3", "k3-reversed", "k3-weighted"])
def test_the_kl_term_adds_the_gradient_of_its_formula(kind: str, against: str) -> None:
    batch = make(6)
    logp = batch.logp.clone().requires_grad_(True)
    d = logp - (batch.logq if against == "sampler" else batch.ref)
    k3 = (-d).exp() + d - 1
    kl = {
        "k2": d**2 / 2,
        "k3": d.exp() - d - 1,
        "k3-reversed": k3,
        "k3-weighted": (logp - batch.logq).exp() * k3,
    }[kind]
    (0.1 * ((kl * batch.mask).sum(-1) / batch.mask.sum(-1)).mean()).backward()
    with_kl = gradient(objective("gepo", {"kl": 0.1, "kl_kind": kind, "kl_against": against}), batch)
    torch.testing.assert_close(with_kl - gradient(objective("gepo"), batch), logp.grad, rtol=1e-4, atol=1e-7)


def test_a_kl_against_a_reference_that_the_batch_lacks_is_said_in_words() -> None:
    with pytest.raises(ValueError, match="against the reference policy, but the batch has no ref"):
        loss(objective("deepseek_v3", {"kl": 0.1}), replace(make(), ref=None))


def test_metrics_are_those_of_a_hand_counted_batch() -> None:
    logq = torch.log(torch.tensor([[0.5, 0.5], [0.25, 0.25], [0.5, 0.5], [0.5, 0.5]]))
    batch = Batch(
        logq, logq, torch.ones(4, 2), torch.tensor([1.0, 0.0, 1.0, 1.0]), torch.tensor([0, 0, 1, 1])
    )
    metrics = loss(objective("gepo_noclip"), batch).metrics
    w = [0.5 / (0.3125 / 0.75), 0.25 / (0.3125 / 0.75)]
    assert (
        metrics["reward"] == 0.75
        and metrics["flat"] == 0.5
        and metrics["zero"] == 0.0
        and metrics["length"] == 2.0
    )
    assert metrics["kl"] == pytest.approx(0, abs=1e-7)
    assert metrics["weight_max"] == pytest.approx(w[0], rel=1e-5)
    assert metrics["ess"] == pytest.approx((sum(w) ** 2 / (2 * (w[0] ** 2 + w[1] ** 2)) + 1) / 2, rel=1e-5)
    assert metrics["weight_var"] == pytest.approx(((w[0] - w[1]) / 2) ** 2 / 2, rel=1e-4)
