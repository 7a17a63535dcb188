"""The KL term of an objective: its derivative by each token's log-probability.

    Kl (kind, weight), Batch, BatchView --kl_slope--> d kl / d logp, (B, T)

A new kind is a row in KL_SLOPES. Invariant: positions outside the mask have no slope. Not handled here: the
objective's other parts (swarm.learn.parts).
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from swarm.learn.learners.batch import Batch, BatchView, difference
from swarm.learn.parts import Kl


class _Slope(Protocol):
    def __call__(self, d: Tensor, view: BatchView) -> Tensor: ...


def _hinge(d: Tensor, view: BatchView) -> Tensor:
    """-max(D - 1e-4, 0), D the mean over the group's completions of their tokens' mean -d: DisCO's constraint
    as a penalty."""
    budget = 1e-4
    mean = view.mean(-torch.where(view.mask, d, 0.0).sum(-1) / view.length)
    return -(mean - budget).clamp(min=0)[:, None].expand_as(d)


KL_SLOPES: dict[str, _Slope] = {
    "k2": lambda d, view: d,
    "k3": lambda d, view: d.exp() - 1,
    "k3-reversed": lambda d, view: 1 - (-d).exp(),
    "k3-weighted": lambda d, view: difference(view, view.logq).exp() * d,
    "hinge": _hinge,
}


def kl_slope(kl: Kl, batch: Batch, view: BatchView) -> Tensor:
    """d kl / d logp (B, T), with logp - other within +-20; 0 where a completion is not possible. Raises
    ValueError when the batch lacks the reference values."""
    if kl.weight == 0:
        return torch.zeros_like(view.logp)
    other = batch.ref if kl.against == "ref" else batch.logq
    if other is None:
        raise ValueError("the objective's KL is against the reference policy, but the batch has no ref")
    return torch.where(view.possible[:, None], KL_SLOPES[kl.kind](difference(view, other), view), 0.0)
