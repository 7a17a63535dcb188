"""Trust regions: from a log weight to phi, the factor of a token's grad logp.

    phi (B, T) = TRUSTS[kind](TrustRegionInput) x veto
    log_w: the objective's log weight; x_it = log r_it; A the advantage

Where a paper differentiates through its region, phi is the derivative: PPO's min(w A, clip(w) A) gives w
inside and 0 outside. Where it stops the gradient at the clipped weight, phi is that weight. Everything is
computed from logs, capped at exp(20).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from swarm.learn.learners.batch import LOG_MAX, Batch, BatchView
from swarm.learn.parts import TrustRegion, log


@dataclass(frozen=True)
class TrustRegionInput:
    """The arguments of a trust region."""

    view: BatchView
    trust: TrustRegion
    log_w: Tensor
    """(B, T) or (B, 1)."""
    anchor: Tensor
    """(B, T) log-probabilities that `clip` and `decoupled` measure from when they are not the sampler's."""
    sign: Tensor
    """(B, 1) of the advantage: -1, 0 or 1."""

    @property
    def w(self) -> Tensor:
        """(B, T) or (B, 1): exp(log_w), at most exp(20)."""
        return self.log_w.clamp(max=LOG_MAX).exp()

    @property
    def drift(self) -> Tensor:
        """(B, 1) mean log ratio of a completion."""
        return self.view.score(self.view.log_r, "geometric")[:, None]

    def inside(self, log_ratio: Tensor, lowest: float, highest: float) -> Tensor:
        """False where the policy has moved where the advantage wants it, beyond these log edges."""
        return ~(((self.sign > 0) & (log_ratio > highest)) | ((self.sign < 0) & (log_ratio < lowest)))


def phi(trust: TrustRegion, view: BatchView, batch: Batch, log_w: Tensor, advantage: Tensor) -> Tensor:
    """phi of a batch, (B, T) or (B, 1), at least 0; NaN where it is undefined, which the caller replaces by
    0."""
    weighed = TrustRegionInput(view, trust, log_w, _anchor(trust, view, batch), advantage.sign()[:, None])
    return TRUSTS[trust.kind](weighed) * _vetoed(weighed)


def _anchor(trust: TrustRegion, view: BatchView, batch: Batch) -> Tensor:
    """`prox`: the batch's, or the learner's own before this step; `blend`: A-3PO's log-linear mean of sampler
    and learner, whose weight on the sampler is one over the lag in versions (arXiv 2512.06547)."""
    match trust.against:
        case "sampler":
            return view.logq
        case "prox":
            return (
                view.logp if batch.prox is None else torch.where(view.mask, batch.prox.detach().float(), 0.0)
            )
        case "blend":
            lag = torch.ones_like(view.length) if batch.lag is None else batch.lag.float().clamp(min=1)
            return view.logp - view.log_r / lag[:, None]
    raise ValueError(f"a trust region is against sampler, prox or blend, not {trust.against!r}")


def _vetoed(it: TrustRegionInput) -> Tensor:
    """1, or 0 for a whole completion. `token`: some r_it < edge. `drift`: A < 0 and mean_t(logq - logp) >
    edge (DeepSeek-V3.2, arXiv 2512.02556 eq. 9)."""
    match it.trust.veto:
        case "none":
            keep = torch.ones_like(it.sign, dtype=torch.bool)
        case "token":
            keep = it.view.log_r.amin(-1, keepdim=True) >= log(it.trust.edge)
        case "drift":
            keep = ~((it.sign < 0) & (-it.drift > it.trust.edge))
        case other:
            raise ValueError(f"a veto is none, token or drift, not {other!r}")
    return keep.float()


def _edges(it: TrustRegionInput) -> tuple[float, float]:
    return log(1 - it.trust.lo), log(1 + it.trust.hi)


def _clip(it: TrustRegionInput) -> Tensor:
    """PPO (arXiv 1707.06347 eq. 7): w, or 0 where A > 0 and the ratio is above 1 + hi, or A < 0 and it is
    below 1 - lo; with `dual` also where A < 0 and it is above that (arXiv 1912.09729). The ratio is w, or
    measured from a proximal policy.
    """
    log_u = it.log_w if it.trust.against == "sampler" else it.view.logp - it.anchor
    dropped = (it.sign < 0) & (log_u > log(it.trust.dual))
    return it.w * (it.inside(log_u, *_edges(it)) & ~dropped)


def _decoupled(it: TrustRegionInput) -> Tensor:
    """r, clipped by the ratio to the proximal policy (AReaL, arXiv 2505.24298) and dropped where prox / q is
    above `dual`."""
    log_u = it.view.logp - it.anchor
    return it.w * (it.inside(log_u, *_edges(it)) & (it.anchor - it.view.logq <= log(it.trust.dual)))


def _cap(it: TrustRegionInput) -> Tensor:
    """min(w, 1 + hi): weights above the cap keep the cap's gradient."""
    return it.log_w.clamp(max=log(1 + it.trust.hi)).exp()


def _floor_cap(it: TrustRegionInput) -> Tensor:
    """CISPO's clip(w, 1 - lo, 1 + hi) without gradient, from both sides (arXiv 2506.13585 eq. 4-5)."""
    lowest, highest = _edges(it)
    return it.log_w.clamp(lowest, highest).exp()


def _band(it: TrustRegionInput) -> Tensor:
    """w inside [1 - lo, 1 + hi], else 0, whatever the advantage."""
    lowest, highest = _edges(it)
    return it.w * ((it.log_w >= lowest) & (it.log_w <= highest))


def _gate(it: TrustRegionInput) -> Tensor:
    """w, or 0 where the completion has moved with its advantage: A > 0 and exp(lp - lq) > 1 + hi, or A < 0
    and it is < 1 - lo, geometric scores. Unlike a clip of GEPO's weight, which is not 1 when p = q, it is
    centred where nothing has moved.
    """
    return it.w * it.inside(it.drift, *_edges(it))


def _taper(it: TrustRegionInput) -> Tensor:
    """1 where A >= 0, min(w, 1) where A < 0 (TOPR, arXiv 2503.14286 eq. 8)."""
    return torch.where(it.sign < 0, it.log_w.clamp(max=0).exp(), torch.ones_like(it.log_w))


def _soft(it: TrustRegionInput) -> Tensor:
    """4 s (1 - s) w, s = sigmoid(tau (w - 1)): the derivative of SAPO's gate (arXiv 2511.20347). Constants:
    tau for A > 0, else tau."""
    up, down = it.trust.constants
    s = torch.sigmoid(torch.where(it.sign > 0, up, down) * (it.w - 1))
    return 4 * s * (1 - s) * it.w


def _gamma(it: TrustRegionInput) -> Tensor:
    """w^k exp(lambda (1 - w)) (VESPO, arXiv 2602.10693). Constants: k, lambda for A >= 0; k, lambda for A <
    0."""
    k_up, l_up, k_down, l_down = it.trust.constants
    k, rate = torch.where(it.sign < 0, k_down, k_up), torch.where(it.sign < 0, l_down, l_up)
    log_w = it.log_w.clamp(max=LOG_MAX)
    return (k * log_w + rate * (1 - log_w.exp())).exp()


def _shift(it: TrustRegionInput) -> Tensor:
    return it.view.logp.exp() - it.view.logq.exp()


def _tv(it: TrustRegionInput) -> Tensor:
    """min(w, dual), or 0 where A > 0 and p - q > hi, or A < 0 and p - q < -lo: probabilities, not their ratio
    (DPPO's binary total variation, arXiv 2602.04879 eq. 12-13)."""
    shift = _shift(it)
    dropped = ((it.sign > 0) & (shift > it.trust.hi)) | ((it.sign < 0) & (shift < -it.trust.lo))
    return it.log_w.clamp(max=min(log(it.trust.dual), LOG_MAX)).exp() * ~dropped


def _tv_band(it: TrustRegionInput) -> Tensor:
    """w where |p - q| <= hi, else 0."""
    return it.w * (_shift(it).abs() <= it.trust.hi)


def _second_moment(it: TrustRegionInput) -> Tensor:
    """PPO's clip at exp(+-X), X the largest |x| such that the mean over the group's harmful tokens (A > 0 and
    r > 1, or A < 0 and r < 1) of min(x^2, X^2) is within a budget; never tighter than 1 - low or 1 + high.
    Constants: budget, low, high.

    M2PO (arXiv 2510.01161) as its authors run it, except that they take the mean over a micro-batch: a group
    is never split.
    """
    budget, low, high = it.trust.constants
    x = torch.where(torch.isfinite(it.view.log_r), it.view.log_r, 0.0).clamp(-LOG_MAX, LOG_MAX)
    harmful = it.view.mask & (it.sign * x > 0)
    count = it.view.sum(harmful.sum(-1).float()).clamp(min=1)
    square = torch.where(harmful, x**2, 0.0)
    below, above = torch.zeros_like(count), torch.full_like(count, LOG_MAX)
    for _ in range(32):  # bisection: the mean grows with X; 20 / 2^32 is finer than float32
        middle = (below + above) / 2
        mean = it.view.sum(torch.minimum(square, middle[it.view.index][:, None] ** 2).sum(-1)) / count
        fits = mean <= budget
        below, above = torch.where(fits, middle, below), torch.where(fits, above, middle)
    edge = below[it.view.index][:, None]
    up = (it.sign > 0) & (x > edge.clamp(min=log(1 + high)))
    down = (it.sign < 0) & (x < (-edge).clamp(max=log(1 - low)))
    return it.w * ~(up | down)


def _geometric_clip(it: TrustRegionInput) -> Tensor:
    """GMPO (arXiv 2507.20673): the geometric mean of ratios clipped in log space, x at most hi for A > 0 and
    at least -lo for A < 0 (nats); a clipped token has no gradient of its own but its bound stays in the
    mean."""
    x = it.view.log_r
    clipped = torch.where(it.sign > 0, x.clamp(max=it.trust.hi), x.clamp(min=-it.trust.lo))
    mean = it.view.score(torch.where(it.view.mask, clipped, 0.0), "geometric")[:, None]
    return mean.clamp(max=LOG_MAX).exp() * it.inside(x, -it.trust.lo, it.trust.hi)


def _widening(it: TrustRegionInput) -> Tensor:
    """w, or 0 where A > 0 and log w > hi sqrt(t), or A < 0 and log w < -lo sqrt(t) or > dual sqrt(t); t = 1,
    2 ... along the completion, edges in nats (CTPO, arXiv 2605.07331, as its authors run it)."""
    root = it.view.mask.float().cumsum(-1).sqrt()
    up = (it.sign > 0) & (it.log_w > it.trust.hi * root)
    down = (it.sign < 0) & ((it.log_w < -it.trust.lo * root) | (it.log_w > it.trust.dual * root))
    return it.w * ~(up | down)


def _hazard(it: TrustRegionInput) -> Tensor:
    """exp(y - z) (1 - (y/c)^2), y = c tanh(x / c), z = (softplus(y) / l_up)^k_up + (softplus(-y) /
    l_down)^k_down.

    MHPO (arXiv 2603.16929). Constants: c, k_up, l_up, k_down, l_down.
    """
    c, k_up, l_up, k_down, l_down = it.trust.constants
    y = c * torch.tanh(it.log_w / c)
    softplus = torch.nn.functional.softplus
    z = (softplus(y) / l_up) ** k_up + (softplus(-y) / l_down) ** k_down
    return (y - z).exp() * (1 - (y / c) ** 2)


TRUSTS: dict[str, Callable[[TrustRegionInput], Tensor]] = {
    "free": lambda it: it.w,
    "clip": _clip,
    "decoupled": _decoupled,
    "cap": _cap,
    "floor-cap": _floor_cap,
    "band": _band,
    "gate": _gate,
    "taper": _taper,
    "soft": _soft,
    "gamma": _gamma,
    "tv": _tv,
    "tv-band": _tv_band,
    "second-moment": _second_moment,
    "geometric-clip": _geometric_clip,
    "widening": _widening,
    "hazard": _hazard,
}
TRUST_READS: dict[str, tuple[str, ...]] = dict.fromkeys(TRUSTS, ()) | {
    "clip": ("lo", "hi", "dual", "against"),
    "decoupled": ("lo", "hi", "dual", "against"),
    "cap": ("hi",),
    "floor-cap": ("lo", "hi"),
    "band": ("lo", "hi"),
    "gate": ("lo", "hi"),
    "tv": ("lo", "hi", "dual"),
    "tv-band": ("hi",),
    "geometric-clip": ("lo", "hi"),
    "widening": ("lo", "hi", "dual"),
}
"""Kind -> which limits of its TrustRegion it reads, beside its constants; one that is not here may read
all."""
