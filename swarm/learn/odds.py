"""Compares claimed log-probabilities with the learner's: the evidence against the sampler, and the values
that may count.

    logp (learner), logq (claimed), (B, T) --odds_of--> Odds of each group (swarm.core.belief decides)
                                           --bounded--> logq within what a window can explain

Both see the learner's own forward pass, which the gradient needs anyway. For an honest group `bounded`
changes no bit. Not handled here: what the ratio of the two is used for (objectives).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from swarm.core.belief import SLACK, Odds

Array = npt.NDArray[np.float64]

LEAST = -100.0
"""Nats: a token that the learner finds impossible counts as this improbable."""


def odds_of(logp: Tensor, logq: Tensor, mask: Tensor, sizes: Sequence[int], longest: int) -> list[Odds]:
    """Of each group: `sizes` completions (B in all) that lie one after the other, (B, T), nats; none has more
    than `longest` tokens. Every completion has one at least."""
    counts = np.asarray(sizes)
    starts, owner = np.cumsum(counts) - counts, np.repeat(np.arange(len(counts)), counts)
    inside = mask.bool().cpu().numpy()
    x = np.where(inside, (logp.detach().double().cpu() - logq.double().cpu()).numpy(), 0.0)
    x = np.clip(x, LEAST, None)
    less = np.where(inside, x - SLACK, -np.inf)

    def of_groups(values: Array) -> Array:
        """(B,) -> log of the sum of their exponentials in each group."""
        top = np.maximum.reduceat(values, starts)
        return top + np.log(np.add.reduceat(np.exp(values - top[owner]), starts))

    whole = np.where(inside, less, 0.0).sum(-1)
    highest = less.max(-1)
    tokens = highest + np.log(np.exp(less - highest[:, None]).sum(-1))
    ratios = np.stack(
        [
            np.add.reduceat(whole, starts),
            of_groups(whole) - np.log(counts),
            of_groups(tokens) - np.log(counts * longest),
        ]
    )
    evidence = np.logaddexp.reduce(ratios) - math.log(len(ratios))
    drift = np.add.reduceat(x.sum(-1), starts) / np.add.reduceat(inside.sum(-1), starts)
    return [Odds(drift=d, evidence=e) for d, e in zip(drift.tolist(), evidence.tolist(), strict=True)]


@torch.no_grad()
def bounded(logp: Tensor, logq: Tensor, drift: float) -> Tensor:
    """logq (B, T) with logp - logq within -2 `drift` and `drift`, nats: on both sides, whatever the
    advantage's sign is.

    An honest token is above the upper edge with a probability of at most exp(-drift); below the lower one its
    weight, exp(-16) at a drift of 8, is none. Where logp is not finite, logq stays as it is.
    """
    within = torch.minimum(torch.maximum(logq, logp - drift), logp + 2 * drift)
    return torch.where(torch.isfinite(logp) & torch.isfinite(logq), within.to(logq.dtype), logq)
