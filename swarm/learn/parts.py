"""The parts of objectives: records that select them, and tables of pure functions that compute them.

    Objective = Advantage x Ratio x TrustRegion x reduce x Kl
    a method is a row in `methods.METHODS`, a new idea a row in a table

Each table maps a member's name to its function on a BatchView. B completions, T tokens, G completions of a
prompt; logp learner, logq sampler, r_it = exp(logp_it - logq_it); lp, lq the scores of a completion
(`geometric`: mean over its tokens, `full`: sum). What spans more than a batch's groups is computed from
`BatchView.total`, so that a micro-batch gives what the whole batch gives. Trust regions are in
`trust_region`, slopes of the KL term in `kl`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from swarm.learn.learners.batch import BatchView, Total, variance

TINY = 1e-4
"""Added to a standard deviation before dividing by it, as TRL and the GEPO authors do."""

INFINITE = float("inf")
EQUAL = 1e-12
"""Variance below which groups' mean rewards count as equal: pass rates that differ do so by more than
1e-6."""


def log(value: float) -> float:
    """log(value); -inf for 0 and below, an edge that no log ratio is beyond."""
    return math.log(value) if value > 0 else -INFINITE


@dataclass(frozen=True)
class Advantage:
    """Which advantage: a centre (CENTRES), then a scale (SCALES)."""

    centre: str = "group-mean"
    """`none`, `group-mean`, `leave-one-out`, `length-weighted`, `weight-weighted` or `discriminative`."""
    scale: str = "none"
    """`none`, `group-std`, `group-mean`, `batch-std`, `beta` or `live`."""


@dataclass(frozen=True)
class Ratio:
    """Which importance ratio (RATIOS), and between which scores."""

    kind: str = "token"
    """`unit`, `token`, `prefix`, `trace`, `sequence`, `self-normalised`, `group-expectation` or
    `tempered`."""
    score: str = "geometric"
    """`geometric` or `full`; for `sequence`, `self-normalised` and `group-expectation`."""
    over: str = "q"
    """What `group-expectation` averages: `q` weighted by q, `mean` (q, each the same) or `p` (weighted by
    q)."""
    mix: float = 0.0
    """Share of the completion's own q in the group's expectation: 0 is GEPO, 1 GSPO."""
    ess: float = 0.5
    """Smallest effective share of a group that `tempered` leaves."""


@dataclass(frozen=True)
class TrustRegion:
    """Which trust region (trust_region.TRUSTS), with its limits and its veto."""

    kind: str = "free"
    """`free`, `clip`, `cap`, `floor-cap`, `band`, `gate`, `taper`, `soft`, `gamma`, `tv`, `tv-band`,
    `second-moment`, `geometric-clip`, `widening`, `hazard` or `decoupled`; see `trust`."""
    lo: float = 0.2
    hi: float = 0.2
    """How far below and above 1 the region reaches: its edges are 1 - lo and 1 + hi where the member does not
    say otherwise."""
    dual: float = INFINITE
    """`clip`: a sample of negative advantage is dropped above this ratio; `tv`, `widening`, `decoupled`: see
    there."""
    constants: tuple[float, ...] = ()
    """Further ones of `soft`, `gamma`, `second-moment` and `hazard`, in the order of their docstrings."""
    against: str = "sampler"
    """What `clip` and `decoupled` measure from: `sampler`, `prox` (a proximal policy) or `blend` (of both, by
    the lag)."""
    veto: str = "none"
    """Drops a whole completion: `token` (a ratio below `edge`) or `drift` (negative advantage, mean log ratio
    below -edge)."""
    edge: float = 0.0


@dataclass(frozen=True)
class Kl:
    """Which KL term (kl.KL_SLOPES), against which policy, with which weight."""

    kind: str = "k3"
    """With d = logp - other: `k2` d^2/2; `k3` exp(d)-d-1, unbiased under the sampler; `k3-reversed`
    exp(-d)+d-1, heavy-tailed, for parity; `k3-weighted` r (exp(-d)+d-1), unbiased under the learner; `hinge`
    on a group's mean -d beyond 1e-4."""
    weight: float = 0.0
    against: str = "sampler"
    """`sampler` or `ref`."""


@dataclass(frozen=True)
class Objective:
    """A method: one member of each part."""

    name: str
    advantage: Advantage
    ratio: Ratio
    trust: TrustRegion
    reduce: str
    """`sequence-mean`, `sequence-sum`, `token-mean`, `live-token-mean`, `prompt-mean`, `constant` or
    `inverse-power`."""
    kl: Kl = Kl()
    about: str = ""
    """One line for a list of methods."""
    source: str = ""
    """Paper and equation."""

    @property
    def of_round(self) -> bool:
        """Whether the objective needs the rewards of the round's whole batch, which other learners then
        announce."""
        return self.advantage.scale in OF_ROUND

    @property
    def has_reference(self) -> bool:
        """Whether its KL term is against a reference policy, which is version 0 of a run."""
        return self.kl.weight > 0 and self.kl.against == "ref"

    def is_flat(self, rewards: Sequence[float]) -> bool:
        """Whether each advantage of a group with these rewards is exactly 0, whatever else is in its batch.

        Rewards count as float32, as in a Batch. False where a part of the advantage is in no table here.
        """
        given = torch.tensor(rewards)
        level = 0.0 if self.advantage.centre == "none" else given[0]
        known = self.advantage.centre in _OWN_CENTRES and self.advantage.scale in _OWN_SCALES
        return known and bool((given == level).all() and given.isfinite().all())

    def teaches(self, rewards: Sequence[float]) -> bool:
        """Whether a group with these rewards may have a gradient: False where it is exactly 0, whatever the
        log-probabilities of its tokens are. All statistics of other groups' gradients that span groups are of
        lengths and rewards (`BatchView.total`)."""
        return self.kl.weight > 0 or not self.is_flat(rewards)


# --- ratio: log weights, (B, T) or (B, 1) -------------------------------------------------------------------


def _unit(view: BatchView, ratio: Ratio) -> Tensor:
    return torch.zeros_like(view.logp)


def _token(view: BatchView, ratio: Ratio) -> Tensor:
    """log r_it."""
    return view.log_r


def _prefix(view: BatchView, ratio: Ratio) -> Tensor:
    """sum_{s<=t} log r_is: the exact ratio of the prefix up to t (per-decision importance sampling)."""
    return view.log_r.cumsum(-1)


def _trace(view: BatchView, ratio: Ratio) -> Tensor:
    """sum_{s>=t} min(0, log r_is): V-trace (arXiv 1802.01561), both bars at 1, one reward at the end and a
    constant baseline."""
    return view.log_r.clamp(max=0).flip(-1).cumsum(-1).flip(-1)


def _sequence(view: BatchView, ratio: Ratio) -> Tensor:
    """lp_i - lq_i: GSPO's ratio (eq. 7) with the geometric score, the trajectory's importance weight with the
    full one."""
    return view.score(view.log_r, ratio.score)[:, None]


def _self_normalised(view: BatchView, ratio: Ratio) -> Tensor:
    """log(G w_i / sum_j w_j) with the sequence weights w: their mean over the group is 1."""
    log_w = view.score(view.log_r, ratio.score)
    return (log_w - (view.lse(log_w) - view.count.log())[view.index])[:, None]


def _group_expectation(view: BatchView, ratio: Ratio) -> Tensor:
    """log w_i = lp_i - log(mix q_i + (1 - mix) E). arXiv 2508.17850 eq. 2-3.

    `q`: E = sum_j q_j^2 / sum_j q_j, in log space LSE(2 lq) - LSE(lq); `mean`: E = sum_j q_j / G; `p`: E =
    sum_j q_j p_j / sum_j q_j. E carries no gradient. A group of one, or of equal q, gives GSPO's ratio for
    the first two.
    """
    lp = torch.where(view.possible, view.score(view.logp, ratio.score), -torch.inf)
    lq = torch.where(view.possible, view.score(view.logq, ratio.score), -torch.inf)
    match ratio.over:
        case "q":
            expected = view.lse(2 * lq) - view.lse(lq)
        case "mean":
            expected = view.lse(lq) - view.count.log()
        case "p":
            expected = view.lse(lq + lp) - view.lse(lq)
        case other:
            raise ValueError(f"a group expectation is over q, mean or p, not {other!r}")
    log_e = expected[view.index]
    if ratio.mix > 0:
        log_e = torch.logaddexp(math.log(ratio.mix) + lq, log(1 - ratio.mix) + log_e)
    return (lp - log_e)[:, None]


def _tempered(view: BatchView, ratio: Ratio) -> Tensor:
    """log r_it + tau (log r_i - log r_it), log r_i = sum_t log r_it: token ratios at tau 0, the trajectory's
    at tau 1.

    tau is the largest of 0, 1/16 ... 1 at which the group's effective sample size, of its completions' mean
    weights, is at least `ess` of the group; 0 where none is.
    """
    whole = view.score(view.log_r, "full")[:, None]
    best = torch.zeros(view.groups, device=whole.device)
    for step in range(1, 17):
        tau = step / 16
        w = sequence_weight(view, view.log_r + tau * (whole - view.log_r))
        effective = view.sum(w) ** 2 / (view.count * view.sum(w**2)).clamp(min=1e-30)
        best = torch.where(effective >= ratio.ess, tau, best)
    tau_i = best[view.index][:, None]
    finite = torch.isfinite(view.log_r) & torch.isfinite(whole)
    return torch.where(finite, view.log_r + tau_i * (whole - view.log_r), -torch.inf)


def sequence_weight(view: BatchView, log_w: Tensor) -> Tensor:
    """(B,) mean over a completion's tokens of exp(log_w), at most exp(20)."""
    w = torch.where(view.mask, torch.nan_to_num(log_w, nan=-torch.inf).clamp(max=20.0).exp(), 0.0)
    return w.sum(-1) / view.length


RATIOS: dict[str, Callable[[BatchView, Ratio], Tensor]] = {
    "unit": _unit,
    "token": _token,
    "prefix": _prefix,
    "trace": _trace,
    "sequence": _sequence,
    "self-normalised": _self_normalised,
    "group-expectation": _group_expectation,
    "tempered": _tempered,
}
RATIO_READS: dict[str, tuple[str, ...]] = dict.fromkeys(RATIOS, ()) | {
    "sequence": ("score",),
    "self-normalised": ("score",),
    "group-expectation": ("score", "over", "mix"),
    "tempered": ("ess",),
}
"""Kind -> the fields of its Ratio that it reads; a kind that is not here may read all."""

# --- advantage, (B,); w (B,) are the completions' weights ---------------------------------------------------


def _group_mean(view: BatchView, w: Tensor) -> Tensor:
    """r_i - mean(r). Exactly zero for equal rewards."""
    return (view.reward.double() - view.mean(view.reward.double())).float()


def _leave_one_out(view: BatchView, w: Tensor) -> Tensor:
    """r_i - mean of the others' r = G/(G-1) (r_i - mean(r)); 0 in a group of one. RLOO, arXiv 2402.14740."""
    size = view.count[view.index]
    return _group_mean(view, w) * size / (size - 1).clamp(min=1)


def _weighted(view: BatchView, w: Tensor) -> Tensor:
    """r_i - sum_j w_j r_j / sum_j w_j, from centred rewards so that equal ones give exactly zero."""
    centred = _group_mean(view, w).double()
    total = view.sum(w.double())
    mean = view.sum(w.double() * centred) / torch.where(total > 0, total, 1.0)
    return (centred - mean[view.index]).float()


def _discriminative(view: BatchView, w: Tensor) -> Tensor:
    """DisCO (arXiv 2505.12366), log-likelihood scores: c/n+ for a right completion; for a wrong one -c times
    its softmax among the group's wrong ones of the score over 10 (the authors' temperature). Right is what is
    above the group's mean; c, the batch's completions per prompt, makes a mean over completions one over
    prompts."""
    a = _group_mean(view, w)
    right, wrong = (a > 0) & view.possible, (a < 0) & view.possible
    many = view.sum(right.float())[view.index].clamp(min=1)
    score = torch.where(wrong, view.score(view.logp, "geometric") / 10, -torch.inf)
    push = (score - view.lse(score)[view.index]).exp()
    signed = torch.where(right, 1 / many, torch.where(wrong, -torch.nan_to_num(push), 0.0))
    return signed * (view.total.sequences / view.total.groups)


CENTRES: dict[str, Callable[[BatchView, Tensor], Tensor]] = {
    "none": lambda view, w: view.reward,
    "group-mean": _group_mean,
    "leave-one-out": _leave_one_out,
    # OPO, arXiv 2505.23585: the variance-optimal baseline where |grad log p|^2 grows with the length.
    "length-weighted": lambda view, w: _weighted(view, view.length),
    "weight-weighted": _weighted,
    "discriminative": _discriminative,
}


def _scale_group_std(advantage: Tensor, view: BatchView) -> Tensor:
    """A_i / (std(r) + 1e-4), the std with G - 1; 0 where all rewards are equal."""
    std = (view.sum(_group_mean(view, advantage) ** 2) / (view.count - 1).clamp(min=1)).sqrt()
    return advantage / (std[view.index] + TINY)


def _scale_group_mean(advantage: Tensor, view: BatchView) -> Tensor:
    """A_i / (mean(r) + 1e-4): a rare success counts more, as in maximum likelihood."""
    return advantage / (view.mean(view.reward).abs() + TINY)


def _scale_batch_std(advantage: Tensor, view: BatchView) -> Tensor:
    """A_i / (std over the rewards of the round's whole batch + 1e-4), with N - 1."""
    return advantage / (math.sqrt(variance(view.total.round.completions)) + TINY)


def _scale_beta(advantage: Tensor, view: BatchView) -> Tensor:
    """A_i / f(p; 1 + a/3, 1 + b/3): BNPO (arXiv 2506.02864), f the Beta density, p the group's mean reward;
    moments of p over the round's whole batch fit (a, b). One group, or equal p everywhere: f = 1. Rewards in
    [0, 1]."""
    p = view.total.round.groups
    m, v = min(max(p.mean, 0.0), 1.0), variance(p)
    spread = max(m * (1 - m) / v - 1, 0.0) if v > EQUAL else 0.0
    a, b = 1 + spread * m / 3, 1 + spread * (1 - m) / 3
    mine = view.mean(view.reward.double()).clamp(1e-6, 1 - 1e-6)
    log_beta = torch.lgamma(torch.tensor([a, b, a + b], dtype=torch.float64))
    density = (a - 1) * mine.log() + (b - 1) * (-mine).log1p() - (log_beta[0] + log_beta[1] - log_beta[2])
    return advantage * (-density).exp().clamp(max=1e6).float()


def _scale_live(advantage: Tensor, view: BatchView) -> Tensor:
    """A_i B / (B - M): GPG (arXiv 2504.02546), M of the B groups of a round's batch have equal rewards. By
    completions."""
    live = view.total.round.live / view.total.round.completions.count
    return advantage / live if live > 0 else advantage


SCALES: dict[str, Callable[[Tensor, BatchView], Tensor]] = {
    "none": lambda advantage, view: advantage,
    "group-std": _scale_group_std,
    "group-mean": _scale_group_mean,
    "batch-std": _scale_batch_std,
    "beta": _scale_beta,
    "live": _scale_live,
}
_OWN_CENTRES, _OWN_SCALES = frozenset(CENTRES), frozenset(SCALES)
"""Without the rows that others add to the tables. These centres, `none` apart, are exactly 0 where a group's
rewards are equal, and these scales keep a 0."""
OF_ROUND = frozenset({"batch-std", "beta", "live"})
"""Scales that need the round's whole batch: no weight of a learner's gradient in the mean can correct for a
scale of its own batch."""

# --- reduce: weights of tokens ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Reduction:
    """A token counts `share` / `count`. Counts of batches add up to that of their groups in one batch, so
    that the mean of the gradients weighted by them is the gradient of that batch."""

    count: Callable[[Total], float]
    share: Callable[[BatchView], Tensor]
    """(B, 1)"""
    of: Literal["group", "completion", "token"]
    """What adds to the count, at most 1 each."""

    def __call__(self, view: BatchView) -> Tensor:
        """(B, 1) for the tokens of a batch, or of a micro-batch. A count of 0 divides nothing."""
        return self.share(view) / (self.count(view.total) or 1.0)


def _same(view: BatchView) -> Tensor:
    return torch.ones_like(view.length[:, None])


def _sequences(total: Total) -> float:
    return total.sequences


def _tokens(total: Total) -> float:
    return total.tokens


def _live_tokens(total: Total) -> float:
    """Tokens of groups whose rewards differ: DAPO and prime-rl drop the other groups before they count
    tokens."""
    return float(total.length[total.live].sum())


def _inverse_lengths(total: Total) -> float:
    return float((1 / total.length.clamp(min=1)).sum())


def _inverse_power(view: BatchView) -> Tensor:
    """1 / (L_i H), over sum_j 1/L_j, with H the horizon: unbiased and of least variance where a completion's
    variance grows with its length. Delta-L normalisation (arXiv 2509.07558) with its alpha of 1."""
    return 1 / (view.length[:, None] * view.horizon)


def _prompt_mean(view: BatchView) -> Tensor:
    """Mean over all tokens of a prompt's completions, then over prompts."""
    return (1 / view.sum(view.length))[view.index][:, None]


REDUCTIONS: dict[str, Reduction] = {
    "sequence-mean": Reduction(_sequences, lambda view: 1 / view.length[:, None], "completion"),
    "sequence-sum": Reduction(_sequences, _same, "completion"),
    "token-mean": Reduction(_tokens, _same, "token"),
    "live-token-mean": Reduction(_live_tokens, _same, "token"),
    "prompt-mean": Reduction(lambda total: total.groups, _prompt_mean, "group"),
    "constant": Reduction(_sequences, lambda view: _same(view) / view.horizon, "completion"),
    "inverse-power": Reduction(_inverse_lengths, _inverse_power, "completion"),
}
