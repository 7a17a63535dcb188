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
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from swarm.learn.parts import (
    CENTRES,
    KL_SLOPES,
    LOG_MAX,
    RATIOS,
    REDUCTIONS,
    SCALES,
    TRUSTS,
    Batch,
    Total,
    View,
    difference,
    group_sum,
    view_of,
)


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
    view = view_of(batch, objective.ratio.against)
    advantage = SCALES[objective.advantage.scale](CENTRES[objective.advantage.centre](view), view)
    log_w = RATIOS[objective.ratio.kind](view, objective.ratio.score)
    keep = TRUSTS[objective.trust.kind](objective.trust, log_w, advantage, view)
    possible = (torch.isfinite(view.logq) | ~view.mask).all(-1, keepdim=True)
    phi = torch.where(view.mask & keep & possible, log_w.clamp(max=LOG_MAX).exp(), 0.0)
    return advantage, torch.nan_to_num(phi, nan=0.0)


def loss(objective: Objective, batch: Batch) -> Loss:
    """The loss of a batch (or of a micro-batch, see Batch.total) and its metrics. Works in float32."""
    advantage, phi = weights(objective, batch)
    view = view_of(batch, objective.ratio.against)
    mine = Total(view.groups, len(view.reward), int(view.mask.sum()))
    per_token = REDUCTIONS[objective.reduce](view, batch.total or mine, batch.horizon)
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


def _kl_slope(kl: Kl, batch: Batch, view: View) -> Tensor:
    """d kl / d logp (B, T): exp(d) - 1 for k3 (0 where p = q), 1 - exp(-d) reversed; d clamped to +-20."""
    if kl.weight == 0:
        return torch.zeros_like(view.logp)
    other = batch.ref if kl.against == "ref" else batch.logq
    if other is None:
        raise ValueError("the objective's KL is against the reference policy, but the batch has no ref")
    return KL_SLOPES[kl.kind](difference(view, other))


# --- metrics -------------------------------------------------------------------------------------------------------------------

_COUNTED_BY = {"kl": "tokens", "entropy": "tokens", "reward": "sequences", "length": "sequences", "zero": "sequences"}


@torch.no_grad()
def _metrics(view: View, phi: Tensor, batch: Batch) -> dict[str, float]:
    """A sample's weight is the mean of phi over its tokens, after the trust region.

    kl: k3 estimate of KL(sampler || learner), nats per token; ess: (sum w)^2 / (G sum w^2), mean over groups, 0 where all
    weights are; weight_var: variance within groups, mean over groups; flat: groups that teach nothing.
    """
    w = phi.sum(-1) / view.length
    total, square = group_sum(w, view), group_sum(w**2, view)
    ess = torch.where(square > 0, total**2 / (view.count * square.clamp(min=1e-30)), 0.0)
    variance = (square / view.count - (total / view.count) ** 2).clamp(min=0)
    spread = group_sum((CENTRES["group-mean"](view) != 0).float(), view)
    d = difference(view, batch.logq)
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
    "centre": ("advantage", ("centre",), CENTRES),
    "scale": ("advantage", ("scale",), SCALES),
    "ratio": ("ratio", ("kind",), RATIOS),
    "score": ("ratio", ("score",), {"geometric": 1, "full": 1}),
    "against": ("ratio", ("against",), {"sampler": 1, "prox": 1}),
    "trust": ("trust", ("kind",), TRUSTS),
    "eps": ("trust", ("lo", "hi"), None),
    "lo": ("trust", ("lo",), None),
    "hi": ("trust", ("hi",), None),
    "reduce": ("", ("reduce",), REDUCTIONS),
    "kl": ("kl", ("weight",), None),
    "kl_kind": ("kl", ("kind",), KL_SLOPES),
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
    changes: dict[str, Any] = dict.fromkeys(fields, value)
    if not part:
        return replace(chosen, **changes)
    whole: dict[str, Any] = {part: replace(getattr(chosen, part), **changes)}
    return replace(chosen, **whole)


def _nearest(word: str, known: Mapping[str, object]) -> str:
    close = difflib.get_close_matches(word, list(known), n=1)
    return f" (did you mean {close[0]!r}?)" if close else ""
