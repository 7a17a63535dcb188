"""The parts that objectives are made of: small pure functions in tables, on a batch made safe to compute with.

Each table maps a member's name to its function; a new method is a row in `objectives.OBJECTIVES`, a new idea a row here. B
completions, T tokens; lp, lq are scores of a completion under learner and sampler (`geometric`: mean over its tokens, `full`:
sum). Everything is float32 and without gradient.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, Protocol

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


class Limits(Protocol):
    """How far a ratio may lie below and above 1."""

    @property
    def lo(self) -> float: ...

    @property
    def hi(self) -> float: ...


# --- the view: a batch made safe to compute with -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class View:
    """A batch without anything that must not be read."""

    logp: Tensor  # (B, T) detached, float32, 0 where mask is 0
    logq: Tensor  # (B, T) the same, of the policy that the ratio is against
    mask: Tensor  # (B, T) bool
    length: Tensor  # (B,) float, at least 1
    reward: Tensor  # (B,)
    index: Tensor  # (B,) group, numbered from 0
    count: Tensor  # (groups,) float: completions in each
    groups: int


def view_of(batch: Batch, against: str) -> View:
    mask = batch.mask.bool()
    other = batch.prox if against == "prox" else batch.logq
    if other is None:
        raise ValueError("the objective's ratio is against the proximal policy, but the batch has no prox")
    ids, index = torch.unique(batch.group, return_inverse=True)
    return View(
        logp=torch.where(mask, batch.logp.detach().float(), 0.0),
        logq=torch.where(mask, other.detach().float(), 0.0),
        mask=mask,
        length=mask.sum(-1).clamp(min=1).float(),
        reward=batch.reward.float(),
        index=index,
        count=torch.bincount(index, minlength=len(ids)).float(),
        groups=len(ids),
    )


def group_sum(values: Tensor, view: View) -> Tensor:
    """(B,) -> (groups,)"""
    return torch.zeros(view.groups, dtype=values.dtype, device=values.device).index_add_(0, view.index, values)


def _group_lse(values: Tensor, view: View) -> Tensor:
    """log sum exp within each group: (B,) -> (groups,); -inf for a group without a finite member."""
    start = torch.full((view.groups,), -torch.inf, device=values.device)
    top = start.scatter_reduce(0, view.index, values, "amax")
    top = torch.where(torch.isfinite(top), top, 0.0)
    return top + group_sum((values - top[view.index]).exp(), view).log()


def _score(logprobs: Tensor, view: View, kind: str) -> Tensor:
    """(B, T) -> (B,): mean (`geometric`) or sum (`full`) over a completion's tokens."""
    total = logprobs.sum(-1)
    return total / view.length if kind == "geometric" else total


# --- advantage -----------------------------------------------------------------------------------------------------------------


def _centre_group_mean(view: View) -> Tensor:
    """A_i = r_i - mean(r). Exactly zero for equal rewards."""
    mean = (group_sum(view.reward.double(), view) / view.count)[view.index]
    return (view.reward.double() - mean).float()


def _centre_leave_one_out(view: View) -> Tensor:
    """A_i = r_i - mean of the others' r = G/(G-1) (r_i - mean(r)); 0 in a group of one. arXiv 2402.14740."""
    size = view.count[view.index]
    return _centre_group_mean(view) * size / (size - 1).clamp(min=1)


def _scale_group_std(advantage: Tensor, view: View) -> Tensor:
    """A_i / (std(r) + 1e-6), the std with G - 1; 0 where all rewards are equal."""
    centred = _centre_group_mean(view)
    std = (group_sum(centred**2, view) / (view.count - 1).clamp(min=1)).sqrt()
    return advantage / (std[view.index] + TINY)


CENTRES: dict[str, Callable[[View], Tensor]] = {
    "none": lambda view: view.reward,
    "group-mean": _centre_group_mean,
    "leave-one-out": _centre_leave_one_out,
}
SCALES: dict[str, Callable[[Tensor, View], Tensor]] = {
    "none": lambda advantage, view: advantage,
    "group-std": _scale_group_std,
}

# --- ratio: log weights, (B, T) or (B, 1) --------------------------------------------------------------------------------------


def _ratio_unit(view: View, score: str) -> Tensor:
    return torch.zeros_like(view.logp)


def _ratio_token(view: View, score: str) -> Tensor:
    """log r_it = logp_it - logq_it."""
    return view.logp - view.logq


def _ratio_sequence(view: View, score: str) -> Tensor:
    """log s_i = lp_i - lq_i: GSPO's eq. 7 with the geometric score."""
    return (_score(view.logp, view, score) - _score(view.logq, view, score))[:, None]


def _ratio_group_expectation(view: View, score: str) -> Tensor:
    """log w_i = lp_i - log E, E = sum_j q_j^2 / sum_j q_j over the group, in log space LSE(2 lq) - LSE(lq). arXiv 2508.17850.

    E is the sampler's own expectation of q and carries no gradient. A group of one, or of equal q, gives GSPO's ratio.
    """
    lq = _score(view.logq, view, score)
    expected = _group_lse(2 * lq, view) - _group_lse(lq, view)
    return (_score(view.logp, view, score) - expected[view.index])[:, None]


RATIOS: dict[str, Callable[[View, str], Tensor]] = {
    "unit": _ratio_unit,
    "token": _ratio_token,
    "sequence": _ratio_sequence,
    "group-expectation": _ratio_group_expectation,
}

# --- trust: which samples or tokens still count, bool (B, T) or (B, 1) ---------------------------------------------------------


def _outside(log_ratio: Tensor, advantage: Tensor, limits: Limits) -> Tensor:
    """The policy has already moved where the advantage wants it, by more than the region allows."""
    sign = advantage[:, None]
    lowest = torch.log(torch.tensor(max(1 - limits.lo, 0.0)))
    highest = torch.log(torch.tensor(1 + limits.hi))
    return ((sign > 0) & (log_ratio > highest)) | ((sign < 0) & (log_ratio < lowest))


def _gate(limits: Limits, log_w: Tensor, advantage: Tensor, view: View) -> Tensor:
    """Zero a sample iff A > 0 and exp(lp - lq) > 1 + hi, or A < 0 and exp(lp - lq) < 1 - lo; geometric scores.

    Unlike a clip of GEPO's weight, which is not 1 when p = q, the gate is centred where nothing has moved.
    """
    return ~_outside(_ratio_sequence(view, "geometric"), advantage, limits)


TRUSTS: dict[str, Callable[[Limits, Tensor, Tensor, View], Tensor]] = {
    "free": lambda limits, log_w, advantage, view: torch.ones_like(log_w, dtype=torch.bool),
    # min(w A, clip(w) A) of PPO (arXiv 1707.06347 eq. 7): its gradient is that of w A, or zero outside.
    "clip": lambda limits, log_w, advantage, view: ~_outside(log_w, advantage, limits),
    "gate": _gate,
}

# --- reduce: what a token counts, (B, 1) ---------------------------------------------------------------------------------------

REDUCTIONS: dict[str, Callable[[View, Total, float], Tensor]] = {
    "sequence-mean": lambda view, total, horizon: 1 / (total.sequences * view.length[:, None]),
    "sequence-sum": lambda view, total, horizon: torch.ones_like(view.length[:, None]) / total.sequences,
    "token-mean": lambda view, total, horizon: torch.ones_like(view.length[:, None]) / max(total.tokens, 1),
    "constant": lambda view, total, horizon: torch.ones_like(view.length[:, None]) / (total.sequences * horizon),
}

# --- KL ------------------------------------------------------------------------------------------------------------------------


KL_SLOPES: dict[str, Callable[[Tensor], Tensor]] = {
    "k3": lambda d: d.exp() - 1,
    "k3-reversed": lambda d: 1 - (-d).exp(),
}


def difference(view: View, other: Tensor) -> Tensor:
    """logp - other (B, T) where masked and possible, else 0."""
    d = torch.where(view.mask, view.logp - other.detach().float(), 0.0)
    return torch.nan_to_num(d, nan=0.0).clamp(-LOG_MAX, LOG_MAX)
