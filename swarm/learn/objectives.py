"""Objectives are values: a method is a frozen record of five parts, and one line of torch serves all of them.

Every policy-gradient method of this family descends along

    -sum_it a_it * A_i * phi_it * grad logp_it  +  beta * sum_it a_it * kl'_it * grad logp_it

so a method says: which advantage A (B,), which ratio and which trust region (together phi (B,T)), how tokens are reduced
(a (B,T)), and which KL term. In comes a Batch of whole groups, out comes a Loss whose gradient is the sum above; its value is
a surrogate and means nothing by itself. B completions, T tokens, G completions of one prompt under one policy version.
Notation: logp learner, logq sampler, lp and lq their scores of a completion (`geometric`: mean over its tokens, `full`: sum).

Invariant: the gradient of a batch is the sum of the gradients of its micro-batches as long as groups stay whole and `total`
is that of the whole batch. Samples whose probability under the sampler is not positive and finite get weight zero: they
cannot have been sampled. Not handled here: where the tensors come from, averaging between learners, who is too stale.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

LOG_MAX = 20.0
# exp(20) is 5e8: a larger ratio carries no information but its exponential would overflow float32 at 88.
TINY = 1e-6
# Added to a standard deviation before dividing by it, as the GRPO authors do.


class Total(NamedTuple):
    """What a mean over the whole batch divides by; a micro-batch is handed the whole batch's."""

    groups: int
    sequences: int
    tokens: int


@dataclass(frozen=True)
class Batch:
    """Whole groups. Nothing is read where mask is 0."""

    logp: Tensor
    """(B, T) learner's log-probabilities, nats; the only tensor that gradients flow through."""
    logq: Tensor
    """(B, T) sampler's."""
    mask: Tensor
    """(B, T) 1 on completion tokens, the end token included."""
    reward: Tensor
    """(B,)"""
    group: Tensor
    """(B,) int, equal within a group; any values."""
    prox: Tensor | None = None
    """(B, T) log-probabilities under a proximal policy, for `against = "prox"`."""
    ref: Tensor | None = None
    """(B, T) under a reference policy, for the KL term `against = "ref"`."""
    lag: Tensor | None = None
    """(B,) versions."""
    entropy: Tensor | None = None
    """(B, T) nats, of the learner's distribution; only reported."""
    horizon: float = 1.0
    """Longest completion in tokens: the constant of the `constant` reduction."""
    total: Total | None = None
    """Of the whole batch when this is a micro-batch; None: this is the whole."""


@dataclass(frozen=True)
class Advantage:
    centre: str = "group-mean"
    """`none`, `group-mean` or `leave-one-out`."""
    scale: str = "none"
    """`none` or `group-std`."""


@dataclass(frozen=True)
class Ratio:
    kind: str = "token"
    """`unit`, `token`, `sequence` or `group-expectation`."""
    score: str = "geometric"
    """`geometric` or `full`; for the last two."""
    against: str = "sampler"
    """`sampler` or `prox`."""


@dataclass(frozen=True)
class Trust:
    kind: str = "free"
    """`free`, `clip` (PPO's, on the ratio itself) or `gate` (on exp(lp - lq), geometric scores)."""
    lo: float = 0.2
    hi: float = 0.2


@dataclass(frozen=True)
class Kl:
    kind: str = "k3"
    """`k3`: unbiased exp(d)-d-1 with d = logp - logq; `k3-reversed`: exp(-d)+d-1, heavy-tailed, for parity only."""
    weight: float = 0.0
    against: str = "sampler"
    """`sampler` or `ref`."""


@dataclass(frozen=True)
class Objective:
    name: str
    advantage: Advantage
    ratio: Ratio
    trust: Trust
    reduce: str
    """`sequence-mean`, `sequence-sum`, `token-mean` or `constant`."""
    kl: Kl = Kl()


class Loss(NamedTuple):
    value: Tensor
    """Scalar; only its gradient means something."""
    metrics: dict[str, float]
    total: Total
    """Of this (micro-)batch, for `merge`."""


OBJECTIVES: dict[str, Objective] = {
    o.name: o
    for o in (
        # Williams 1992: reward times grad log p, no baseline, no correction.
        Objective("reinforce", Advantage("none"), Ratio("unit"), Trust("free"), "sequence-sum"),
        # arXiv 2402.03300 eq. 3: std-normalised advantage, token ratio, PPO clip, mean over each sequence.
        Objective("grpo", Advantage("group-mean", "group-std"), Ratio("token"), Trust("clip"), "sequence-mean"),
        # arXiv 2503.20783: GRPO without the std and without each sequence's length.
        Objective("dr_grpo", Advantage("group-mean"), Ratio("token"), Trust("clip"), "constant"),
        # arXiv 2507.18071 eq. 5-7: length-normalised sequence ratio; the clip is the paper's.
        Objective(
            "gspo", Advantage("group-mean", "group-std"), Ratio("sequence"), Trust("clip", 3e-4, 4e-4), "sequence-mean"
        ),
        # arXiv 2508.17850: group expectation weight. The gate is ours: see `_gate`.
        Objective("gepo", Advantage("group-mean"), Ratio("group-expectation"), Trust("gate"), "sequence-mean"),
        Objective("gepo_noclip", Advantage("group-mean"), Ratio("group-expectation"), Trust("free"), "sequence-mean"),
        Objective("gepo_full", Advantage("group-mean"), Ratio("group-expectation", "full"), Trust("gate"), "sequence-sum"),
        # As the authors ran it: the PPO clip around 1 on a weight that is not centred there.
        Objective("gepo_paper", Advantage("group-mean"), Ratio("group-expectation"), Trust("clip"), "sequence-mean"),
    )
}


def objective(name: str, options: Mapping[str, float | str | bool] | None = None) -> Objective:
    """The method `name` with parts overridden. Raises ValueError for an unknown name, option or member, naming the nearest.

    Options: centre, scale, ratio, score, against, trust, eps (both sides), lo, hi, reduce, kl (weight), kl_kind, kl_against.
    """
    if name not in OBJECTIVES:
        raise ValueError(f"there is no objective {name!r}{_nearest(name, OBJECTIVES)}; known: {', '.join(sorted(OBJECTIVES))}")
    chosen = OBJECTIVES[name]
    for option, value in (options or {}).items():
        if option not in _OPTIONS:
            raise ValueError(f"objective {name} has no option {option!r}{_nearest(option, _OPTIONS)}")
        chosen = _override(chosen, option, value)
    return chosen


@torch.no_grad()
def weights(objective: Objective, batch: Batch) -> tuple[Tensor, Tensor]:
    """Advantage (B,) and phi (B, T) of a batch of whole groups, float32, without gradient; phi is 0 where mask is 0."""
    view = _view(batch, objective.ratio.against)
    advantage = _SCALES[objective.advantage.scale](_CENTRES[objective.advantage.centre](view), view)
    log_w = _RATIOS[objective.ratio.kind](view, objective.ratio.score)
    keep = _TRUSTS[objective.trust.kind](objective.trust, log_w, advantage, view)
    possible = (torch.isfinite(view.logq) | ~view.mask).all(-1, keepdim=True)
    phi = torch.where(view.mask & keep & possible, log_w.clamp(max=LOG_MAX).exp(), 0.0)
    return advantage, torch.nan_to_num(phi, nan=0.0)


def loss(objective: Objective, batch: Batch) -> Loss:
    """The loss of a batch (or of a micro-batch, see Batch.total) and its metrics. Works in float32."""
    advantage, phi = weights(objective, batch)
    view = _view(batch, objective.ratio.against)
    mine = Total(view.groups, len(view.reward), int(view.mask.sum()))
    per_token = _REDUCTIONS[objective.reduce](view, batch.total or mine, batch.horizon)
    with torch.no_grad():
        coefficient = per_token * (advantage[:, None] * phi - objective.kl.weight * _kl_slope(objective.kl, batch, view))
    # -inf * 0 is nan: an impossible token must not reach the product, not even with coefficient zero.
    live = view.mask & torch.isfinite(batch.logp)
    value = -(coefficient * torch.where(live, batch.logp.float(), 0.0)).sum()
    return Loss(value, _metrics(view, phi, batch), mine)


def merge(losses: Sequence[Loss]) -> dict[str, float]:
    """Metrics of a batch from those of its micro-batches: means by groups, sequences or tokens, and the maximum of maxima."""
    merged: dict[str, float] = {}
    for name in losses[0].metrics:
        values = [part.metrics[name] for part in losses]
        if name == "weight_max":
            merged[name] = max(values)
            continue
        counts = [getattr(part.total, _COUNTED_BY.get(name, "groups")) for part in losses]
        merged[name] = sum(v * n for v, n in zip(values, counts, strict=True)) / max(sum(counts), 1)
    return merged


# --- the view: a batch made safe to compute with -------------------------------------------------------------------------------


class _View(NamedTuple):
    logp: Tensor  # (B, T) detached, float32, 0 where mask is 0
    logq: Tensor  # (B, T) the same, of the policy that the ratio is against
    mask: Tensor  # (B, T) bool
    length: Tensor  # (B,) float, at least 1
    reward: Tensor  # (B,)
    index: Tensor  # (B,) group, numbered from 0
    size: Tensor  # (groups,) float
    groups: int


def _view(batch: Batch, against: str) -> _View:
    mask = batch.mask.bool()
    other = batch.prox if against == "prox" else batch.logq
    if other is None:
        raise ValueError("the objective's ratio is against the proximal policy, but the batch has no prox")
    ids, index = torch.unique(batch.group, return_inverse=True)
    return _View(
        logp=torch.where(mask, batch.logp.detach().float(), 0.0),
        logq=torch.where(mask, other.detach().float(), 0.0),
        mask=mask,
        length=mask.sum(-1).clamp(min=1).float(),
        reward=batch.reward.float(),
        index=index,
        size=torch.bincount(index, minlength=len(ids)).float(),
        groups=len(ids),
    )


def _group_sum(values: Tensor, view: _View) -> Tensor:
    """(B,) -> (groups,)"""
    return torch.zeros(view.groups, dtype=values.dtype, device=values.device).index_add_(0, view.index, values)


def _group_lse(values: Tensor, view: _View) -> Tensor:
    """log sum exp within each group: (B,) -> (groups,); -inf for a group without a finite member."""
    start = torch.full((view.groups,), -torch.inf, device=values.device)
    top = start.scatter_reduce(0, view.index, values, "amax")
    top = torch.where(torch.isfinite(top), top, 0.0)
    return top + _group_sum((values - top[view.index]).exp(), view).log()


def _score(logprobs: Tensor, view: _View, kind: str) -> Tensor:
    """(B, T) -> (B,): mean (`geometric`) or sum (`full`) over a completion's tokens."""
    total = logprobs.sum(-1)
    return total / view.length if kind == "geometric" else total


# --- advantage -----------------------------------------------------------------------------------------------------------------


def _centre_group_mean(view: _View) -> Tensor:
    """A_i = r_i - mean(r). Exactly zero for equal rewards."""
    mean = (_group_sum(view.reward.double(), view) / view.size)[view.index]
    return (view.reward.double() - mean).float()


def _centre_leave_one_out(view: _View) -> Tensor:
    """A_i = r_i - mean of the others' r = G/(G-1) (r_i - mean(r)); 0 in a group of one. arXiv 2402.14740."""
    size = view.size[view.index]
    return _centre_group_mean(view) * size / (size - 1).clamp(min=1)


def _scale_group_std(advantage: Tensor, view: _View) -> Tensor:
    """A_i / (std(r) + 1e-6), the std with G - 1; 0 where all rewards are equal."""
    centred = _centre_group_mean(view)
    std = (_group_sum(centred**2, view) / (view.size - 1).clamp(min=1)).sqrt()
    return advantage / (std[view.index] + TINY)


_CENTRES: dict[str, Callable[[_View], Tensor]] = {
    "none": lambda view: view.reward,
    "group-mean": _centre_group_mean,
    "leave-one-out": _centre_leave_one_out,
}
_SCALES: dict[str, Callable[[Tensor, _View], Tensor]] = {
    "none": lambda advantage, view: advantage,
    "group-std": _scale_group_std,
}

# --- ratio: log weights, (B, T) or (B, 1) --------------------------------------------------------------------------------------


def _ratio_unit(view: _View, score: str) -> Tensor:
    return torch.zeros_like(view.logp)


def _ratio_token(view: _View, score: str) -> Tensor:
    """log r_it = logp_it - logq_it."""
    return view.logp - view.logq


def _ratio_sequence(view: _View, score: str) -> Tensor:
    """log s_i = lp_i - lq_i: GSPO's eq. 7 with the geometric score."""
    return (_score(view.logp, view, score) - _score(view.logq, view, score))[:, None]


def _ratio_group_expectation(view: _View, score: str) -> Tensor:
    """log w_i = lp_i - log E, E = sum_j q_j^2 / sum_j q_j over the group, in log space LSE(2 lq) - LSE(lq). arXiv 2508.17850.

    E is the sampler's own expectation of q and carries no gradient. A group of one, or of equal q, gives GSPO's ratio.
    """
    lq = _score(view.logq, view, score)
    expected = _group_lse(2 * lq, view) - _group_lse(lq, view)
    return (_score(view.logp, view, score) - expected[view.index])[:, None]


_RATIOS: dict[str, Callable[[_View, str], Tensor]] = {
    "unit": _ratio_unit,
    "token": _ratio_token,
    "sequence": _ratio_sequence,
    "group-expectation": _ratio_group_expectation,
}

# --- trust: which samples or tokens still count, bool (B, T) or (B, 1) -----------------------------------------------------------


def _outside(log_ratio: Tensor, advantage: Tensor, trust: Trust) -> Tensor:
    """The policy has already moved where the advantage wants it, by more than the region allows."""
    sign = advantage[:, None]
    lowest = torch.log(torch.tensor(max(1 - trust.lo, 0.0)))
    highest = torch.log(torch.tensor(1 + trust.hi))
    return ((sign > 0) & (log_ratio > highest)) | ((sign < 0) & (log_ratio < lowest))


def _gate(trust: Trust, log_w: Tensor, advantage: Tensor, view: _View) -> Tensor:
    """Zero a sample iff A > 0 and exp(lp - lq) > 1 + hi, or A < 0 and exp(lp - lq) < 1 - lo; geometric scores.

    Unlike a clip of GEPO's weight, which is not 1 when p = q, the gate is centred where nothing has moved.
    """
    return ~_outside(_ratio_sequence(view, "geometric"), advantage, trust)


_TRUSTS: dict[str, Callable[[Trust, Tensor, Tensor, _View], Tensor]] = {
    "free": lambda trust, log_w, advantage, view: torch.ones_like(log_w, dtype=torch.bool),
    # min(w A, clip(w) A) of PPO (arXiv 1707.06347 eq. 7): its gradient is that of w A, or zero outside.
    "clip": lambda trust, log_w, advantage, view: ~_outside(log_w, advantage, trust),
    "gate": _gate,
}

# --- reduce: what a token counts, (B, 1) ---------------------------------------------------------------------------------------

_REDUCTIONS: dict[str, Callable[[_View, Total, float], Tensor]] = {
    "sequence-mean": lambda view, total, horizon: 1 / (total.sequences * view.length[:, None]),
    "sequence-sum": lambda view, total, horizon: torch.ones_like(view.length[:, None]) / total.sequences,
    "token-mean": lambda view, total, horizon: torch.ones_like(view.length[:, None]) / max(total.tokens, 1),
    "constant": lambda view, total, horizon: torch.ones_like(view.length[:, None]) / (total.sequences * horizon),
}

# --- KL ------------------------------------------------------------------------------------------------------------------------


def _kl_slope(kl: Kl, batch: Batch, view: _View) -> Tensor:
    """d kl / d logp (B, T): exp(d) - 1 for k3 (0 where p = q), 1 - exp(-d) reversed; d clamped to +-20."""
    if kl.weight == 0:
        return torch.zeros_like(view.logp)
    other = batch.ref if kl.against == "ref" else batch.logq
    if other is None:
        raise ValueError("the objective's KL is against the reference policy, but the batch has no ref")
    return _KL_SLOPES[kl.kind](_difference(view, other))


_KL_SLOPES: dict[str, Callable[[Tensor], Tensor]] = {
    "k3": lambda d: d.exp() - 1,
    "k3-reversed": lambda d: 1 - (-d).exp(),
}


def _difference(view: _View, other: Tensor) -> Tensor:
    """logp - other (B, T) where masked and possible, else 0."""
    d = torch.where(view.mask, view.logp - other.detach().float(), 0.0)
    return torch.nan_to_num(d, nan=0.0).clamp(-LOG_MAX, LOG_MAX)


# --- metrics -------------------------------------------------------------------------------------------------------------------

_COUNTED_BY = {"kl": "tokens", "entropy": "tokens", "reward": "sequences", "length": "sequences", "zero": "sequences"}


@torch.no_grad()
def _metrics(view: _View, phi: Tensor, batch: Batch) -> dict[str, float]:
    """A sample's weight is the mean of phi over its tokens, after the trust region.

    kl: k3 estimate of KL(sampler || learner), nats per token; ess: (sum w)^2 / (G sum w^2), mean over groups, 0 where all
    weights are; weight_var: variance within groups, mean over groups; flat: groups that teach nothing.
    """
    w = phi.sum(-1) / view.length
    total, square = _group_sum(w, view), _group_sum(w**2, view)
    ess = torch.where(square > 0, total**2 / (view.size * square.clamp(min=1e-30)), 0.0)
    variance = (square / view.size - (total / view.size) ** 2).clamp(min=0)
    spread = _group_sum((_centre_group_mean(view) != 0).float(), view)
    d = _difference(view, batch.logq)
    tokens = view.mask.sum().clamp(min=1)
    metrics = {
        "reward": view.reward.mean(),
        "kl": torch.where(view.mask, d.exp() - d - 1, 0.0).sum() / tokens,
        "ess": ess.mean(),
        "weight_var": variance.mean(),
        "weight_max": w.max(),
        "zero": (w == 0).float().mean(),
        "flat": (spread == 0).float().mean(),
        "length": view.mask.sum(-1).float().mean(),
    }
    if batch.entropy is not None:
        metrics["entropy"] = torch.where(view.mask, batch.entropy.float(), 0.0).sum() / tokens
    return {name: float(value) for name, value in metrics.items()}


# --- options -------------------------------------------------------------------------------------------------------------------

_OPTIONS: dict[str, tuple[str, tuple[str, ...], Mapping[str, object] | None]] = {
    # option -> part, fields it sets, members it chooses among (None: a number of at least 0)
    "centre": ("advantage", ("centre",), _CENTRES),
    "scale": ("advantage", ("scale",), _SCALES),
    "ratio": ("ratio", ("kind",), _RATIOS),
    "score": ("ratio", ("score",), {"geometric": 1, "full": 1}),
    "against": ("ratio", ("against",), {"sampler": 1, "prox": 1}),
    "trust": ("trust", ("kind",), _TRUSTS),
    "eps": ("trust", ("lo", "hi"), None),
    "lo": ("trust", ("lo",), None),
    "hi": ("trust", ("hi",), None),
    "reduce": ("", ("reduce",), _REDUCTIONS),
    "kl": ("kl", ("weight",), None),
    "kl_kind": ("kl", ("kind",), _KL_SLOPES),
    "kl_against": ("kl", ("against",), {"sampler": 1, "ref": 1}),
}


def _override(chosen: Objective, option: str, value: float | str | bool) -> Objective:
    part, fields, members = _OPTIONS[option]
    if members is not None and value not in members:
        raise ValueError(f"option {option} of objective {chosen.name} is {value!r}; known: {', '.join(members)}")
    if members is None:
        if isinstance(value, (bool, str)) or not 0 <= value < float("inf"):
            raise ValueError(f"option {option} of objective {chosen.name} is {value!r}, it has to be a number of at least 0")
        value = float(value)
    changes = dict.fromkeys(fields, value)
    if not part:
        return replace(chosen, **changes)
    return replace(chosen, **{part: replace(getattr(chosen, part), **changes)})


def _nearest(word: str, known: Mapping[str, object]) -> str:
    close = difflib.get_close_matches(word, list(known), n=1)
    return f" (did you mean {close[0]!r}?)" if close else ""
