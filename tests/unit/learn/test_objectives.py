"""What holds for every objective, whatever its formula (`test_methods` has the formulas): of each part once,
and of six whole methods. And where a method is another one."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import fields, replace
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from objective_parts import METHODS, PARTS, having
from torch import Tensor

from swarm.learn.learners.batch import view_of
from swarm.learn.objectives import (
    OBJECTIVES,
    Batch,
    Loss,
    Objective,
    Total,
    loss,
    mean_weight,
    merge,
    objective,
    weights,
)
from swarm.learn.parts import CENTRES, REDUCTIONS, Kl

EVERY = PARTS | METHODS
ROWS = ("logp", "logq", "mask", "reward", "group", "prox", "ref", "lag", "silent", "entropy")
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
        silent=torch.zeros(rows, dtype=torch.bool),
    )


def rows(batch: Batch, chosen: Tensor) -> Batch:
    return replace(batch, **{name: getattr(batch, name)[chosen] for name in ROWS})


def learned(method: Objective, batch: Batch) -> tuple[Loss, Tensor]:
    """The loss and its gradient."""
    logp = batch.logp.clone().requires_grad_(True)
    found = loss(method, replace(batch, logp=logp))
    found.value.backward()
    assert logp.grad is not None
    return found._replace(value=found.value.detach()), logp.grad


def gradient(method: Objective, batch: Batch) -> Tensor:
    return learned(method, batch)[1]


def each(names: Collection[str]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("name", names)


def phi_of(name: str, batch: Batch, **options: float | str | bool) -> Tensor:
    return weights(objective(name, options), batch)[1]


# --- of every part ------------------------------------------------------------------------------------------


def test_rows_are_all_there_is_in_a_batch() -> None:
    assert {f.name for f in fields(Batch)} == {*ROWS, "horizon", "total"}


@each(EVERY)
def test_whole_or_in_micro_batches_in_any_order_the_gradient_and_the_metrics_are_the_same(name: str) -> None:
    sizes, method = (4, 2, 1, 3), EVERY[name]
    batch, starts = make(1, sizes), [0, 4, 6, 7, 10]
    total = Total.of(
        *([v[a:b].tolist() for a, b in pairwise(starts)] for v in (batch.mask.sum(-1), batch.reward))
    )
    gen = torch.Generator().manual_seed(1)
    micro = [torch.arange(a, b)[torch.randperm(b - a, generator=gen)] for a, b in pairwise([0, 4, 7, 10])]
    whole, grad = learned(method, batch)
    parts = [learned(method, replace(rows(batch, chosen), total=total)) for chosen in micro]
    for chosen, (_, part) in zip(micro, parts, strict=True):
        torch.testing.assert_close(part, grad[chosen], rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(sum(part.value for part, _ in parts), whole.value, rtol=1e-4, atol=1e-5)
    assert merge([part for part, _ in parts]) == pytest.approx(whole.metrics, rel=1e-4, abs=1e-6)


@each(EVERY)
def test_a_silent_completion_has_no_gradient_and_the_others_have_theirs(name: str) -> None:
    batch = make(2)
    silent = torch.tensor([True, False, False, True, False, True, False, False])
    (plain, before), (found, grad) = (
        learned(EVERY[name], one) for one in (batch, replace(batch, silent=silent))
    )
    assert torch.equal(grad, torch.where(silent[:, None], 0.0, before))
    assert found.metrics == plain.metrics and torch.equal(found.advantage, plain.advantage)


@each([*having("centre", "scale", "reduce"), *METHODS])
def test_equal_rewards_or_a_group_of_one_teach_nothing_but_where_nothing_is_a_baseline(name: str) -> None:
    method = replace(EVERY[name], kl=Kl())
    equal = replace(make(2), reward=torch.full((8,), 0.3))
    alone = replace(make(3, (1, 1, 1)), reward=torch.tensor([1.0, 0.0, 0.5]))
    for batch in (equal, alone):
        found, grad = learned(method, batch)
        assert torch.isfinite(grad).all()
        assert bool(grad.any()) == (name == "centre=none")
        assert found.metrics["flat"] == 1.0


@each(EVERY)
def test_what_lies_behind_the_mask_is_never_read_however_much_it_is(name: str) -> None:
    batch, method = make(4), EVERY[name]
    dirt = {"logp": math.nan, "logq": math.inf, "prox": math.nan, "ref": -math.inf, "entropy": math.nan}
    wide = {f: torch.nn.functional.pad(getattr(batch, f), (0, 5)) for f in (*dirt, "mask")}
    wider = replace(batch, **wide)
    behind = wide["mask"] == 0
    filled = replace(wider, **{f: wide[f].masked_fill(behind, bad) for f, bad in dirt.items()})
    (clean, grad), (dirty, same) = learned(method, wider), learned(method, filled)
    assert torch.equal(same, grad)
    assert dirty.metrics == clean.metrics
    assert batch.mask.sum(-1).unique().numel() > 2
    torch.testing.assert_close(grad[:, :6], gradient(method, batch))


@each(["plain", "trust=decoupled against=prox dual=5.0", "kl=0.1 kl_against=ref", *METHODS])
def test_weights_are_those_of_float32_whatever_comes_in(name: str) -> None:
    batch, method = make(6), EVERY[name]
    read = ("logp", "logq", "mask", "reward", "prox", "ref", "entropy")
    for dtype in (torch.float64, torch.float16, torch.bfloat16):
        tensors = {f: getattr(batch, f).to(dtype) for f in read}
        narrow = replace(batch, **tensors)
        single = replace(batch, **{f: value.float() for f, value in tensors.items()})
        for mine, expected in zip(weights(method, narrow), weights(method, single), strict=True):
            assert mine.dtype == torch.float32
            assert torch.equal(mine, expected)
        (found, grad), (true, expected) = learned(method, narrow), learned(method, single)
        assert float(found.value) == float(true.value)
        torch.testing.assert_close(grad, expected.to(dtype), rtol=1e-6, atol=1e-9)


# --- policies far apart, and what cannot have been sampled --------------------------------------------------

APART = [*having("centre", "ratio", "trust", "veto", "kl"), *METHODS]


def spoiled(batch: Batch, bad: float, *fields: str) -> Batch:
    """With `bad` for the first token of the second completion."""
    at = torch.zeros_like(batch.mask, dtype=torch.bool)
    at[1, 0] = True
    return replace(batch, **{f: getattr(batch, f).masked_fill(at, bad) for f in fields})


def far(shift: float) -> Batch:
    batch = make(7, length=40, shift=shift)
    moved = shift * torch.randn(8, 40, generator=torch.Generator().manual_seed(1))
    return replace(batch, logp=batch.logq + moved)


EXTREMES = {
    "5 nats a token apart": far(5.0),
    "60 nats a token apart": far(60.0),
    "impossible now": spoiled(make(8), -math.inf, "logp"),
    "impossible then": spoiled(make(8), -math.inf, "logq"),
    "impossible": spoiled(make(8), -math.inf, "logp", "logq"),
    "not a number": spoiled(make(8), math.nan, "logq"),
}


@each(APART)
def test_policies_far_apart_and_impossible_tokens_leave_everything_finite(name: str) -> None:
    for apart, batch in EXTREMES.items():
        found, grad = learned(EVERY[name], batch)
        numbers = (float(found.value), *found.metrics.values())
        assert torch.isfinite(grad).all() and all(map(math.isfinite, numbers)), apart


@each(APART)
def test_of_an_impossible_completion_only_reward_and_length_are_read(name: str) -> None:
    """It has no gradient of its own, not even of the KL, and what it or its sampler said elsewhere moves
    nobody else's."""
    method, one = EVERY[name], spoiled(make(8), -math.inf, "logq")
    other = replace(one, logp=one.logp.clone(), logq=one.logq.clone())
    gen = torch.Generator().manual_seed(2)
    other.logp[1], other.logq[1, 1:] = (-3 * torch.rand(n, generator=gen) for n in (6, 5))
    grad = gradient(method, one)
    assert not grad[1].any()
    assert torch.equal(grad, gradient(method, other))
    assert not weights(method, one)[1][1].any()


WEIGHING = [*having("ratio", "trust", "veto"), *METHODS]


@each([name for name in WEIGHING if name != "ratio=tempered"])
def test_the_others_weigh_as_if_an_impossible_completion_were_absent(name: str) -> None:
    """Where a weight is over a mean of the group, the absent one counts as a zero in that mean: G / (G - 1)
    as much. (In `tempered` as a member that is not effective: it may lower tau.) Its reward is the group's
    mean here, so that signs stay.
    """
    gone, method = torch.arange(8) != 4, EVERY[name]
    batch = replace(make(1), reward=torch.tensor([1.0, 0.0, 0.0, 1.0, 0.5, 0.0, 1.0, 1.0]))
    with_it = replace(batch, logq=batch.logq.masked_fill(~gone[:, None], -torch.inf))
    over_mean = method.ratio.kind == "self-normalised" or method.ratio.over == "mean"
    factor = torch.tensor([1.0] * 4 + [1.5] * 2 + [1.0])[:, None] if over_mean else 1.0
    (_, phi), (_, without) = weights(method, with_it), weights(method, rows(batch, gone))
    torch.testing.assert_close(phi[gone], without * factor)


# --- symmetries and reductions ------------------------------------------------------------------------------


@each(WEIGHING)
def test_a_common_shift_of_both_policies_matters_to_those_that_compare_probabilities(name: str) -> None:
    """`tv` compares probabilities themselves, not their ratio; a full score adds as often as a completion is
    long."""
    batch, method = make(9, shift=0.6), EVERY[name]
    moved = replace(batch, **{f: getattr(batch, f) - 2 for f in ("logp", "logq", "prox", "ref")})
    same = torch.allclose(gradient(method, moved), gradient(method, batch), rtol=1e-3, atol=1e-6)
    full = method.ratio.kind == "group-expectation" and method.ratio.score == "full"
    assert same != (full or method.trust.kind in ("tv", "tv-band"))


@each([name for name in PARTS if name not in having("kl")] + [*METHODS])
def test_on_policy_all_but_gepo_and_mhpo_are_reinforce_with_their_advantage(name: str) -> None:
    batch, method = make(10), EVERY[name]
    batch = replace(batch, logp=batch.logq.clone(), prox=None)
    advantage, phi = weights(method, batch)
    if method.trust.kind == "hazard":
        shrink = math.exp(-(math.log(2) ** 1.5) - (math.log(2) / 0.8) ** 2)
        torch.testing.assert_close(phi, batch.mask * shrink)
    elif method.ratio.kind == "group-expectation":
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
    batch = make(16, shift=1.5)
    band = phi_of("mis", batch, hi=4.0)
    assert not torch.equal(band, phi_of("mis", batch, trust="free")), "some are above five"
    torch.testing.assert_close(phi_of("decoupled", replace(batch, prox=None)), band)
    torch.testing.assert_close(phi_of("a3po", replace(batch, lag=torch.full((8,), 1e9))), band)


def test_cispo_has_a_lower_edge_where_one_is_asked_for() -> None:
    batch = make(14, shift=0.6)
    phi = phi_of("cispo", batch, lo=0.1, hi=0.2)[batch.mask.bool()]
    assert [float(phi.min()), float(phi.max())] == pytest.approx([0.9, 1.2])


def test_ctpo_widens_each_of_its_edges_with_the_root_of_the_place() -> None:
    log_r = torch.zeros(3, 9)
    # of each prefix from there on: beyond the first five of the edges 0.05 sqrt(t) and -0.025 sqrt(t)
    log_r[:, 0] = torch.tensor([0.12, 0.12, -0.06])
    logq = torch.full((3, 9), -1.0)
    batch = Batch(logq + log_r, logq, torch.ones(3, 9), torch.tensor([1.0, 0.0, 0.0]), torch.zeros(3).long())
    assert phi_of("ctpo", batch).gt(0).tolist() == [[False] * 5 + [True] * 4] * 3


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


def test_a_scale_by_the_mean_of_negative_rewards_turns_no_advantage() -> None:
    batch = make()
    batch = replace(batch, reward=batch.reward - 2)
    centred, scaled = (
        weights(objective("dr_grpo", {"scale": one}), batch)[0] for one in ("none", "group-mean")
    )
    assert torch.equal(centred.sign(), scaled.sign()) and centred.any()


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
    half = loss(objective("gepo_noclip"), replace(batch, logp=logq - math.log(2))).metrics
    assert half["kl"] == pytest.approx(0.5 + math.log(2) - 1, rel=1e-5)


def test_a_batch_without_a_token_that_counts_has_next_to_no_weight_and_not_none() -> None:
    total = Total.of([[3, 2]], [[1.0, 1.0]])
    assert 0 < mean_weight(objective("dapo"), total, 2, 4.0) < 1e-6
