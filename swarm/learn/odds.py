"""Claimed log-probabilities beside the learner's: what they say of the sampler's word, and what of them may count.

    logp (learner), logq (claimed), (B, T) --odds_of--> Odds of each group (swarm.core.belief decides)
                                           --bounded--> logq within what a window can explain

Both see the learner's own forward pass, which the gradient needs anyway. For an honest group `bounded` changes no bit. Not
handled here: what the ratio of the two is used for (objectives).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from swarm.core.belief import SLACK, Odds

LEAST = -100.0
# Nats: a token that the learner finds impossible counts as this improbable.


@torch.no_grad()
def odds_of(logp: Tensor, logq: Tensor, mask: Tensor, sizes: Sequence[int], longest: int) -> list[Odds]:
    """Of each group: `sizes` completions (B in all) that lie one after the other, (B, T), nats; none has more than `longest`
    tokens. Every completion has one at least."""
    mask = mask.bool().cpu()
    x = torch.where(mask, logp.double().cpu() - logq.double().cpu(), 0.0).clamp(min=LEAST)
    less = torch.where(mask, x - SLACK, -torch.inf)
    rows = torch.where(mask, less, 0.0).sum(-1)
    found = []
    parts = (part.split(list(sizes)) for part in (x, mask, less, rows))
    for its_x, its_mask, its_less, its_rows in zip(*parts, strict=True):
        count = len(its_rows)
        ratios = torch.stack([
            its_rows.sum(),
            its_rows.logsumexp(0) - math.log(count),
            its_less.flatten().logsumexp(0) - math.log(count * longest),
        ])  # fmt: skip
        evidence = float(ratios.logsumexp(0)) - math.log(len(ratios))
        found.append(Odds(drift=float(its_x.sum() / its_mask.sum()), evidence=evidence))
    return found


@torch.no_grad()
def bounded(logp: Tensor, logq: Tensor, drift: float) -> Tensor:
    """logq (B, T) with logp - logq within -2 `drift` and `drift`, nats: on both sides, whatever the advantage's sign is.

    An honest token is above the upper edge with a probability of at most exp(-drift); below the lower one its weight, exp(-16) at
    a drift of 8, is none. Where logp is not finite, logq stays as it is.
    """
    within = torch.minimum(torch.maximum(logq, logp - drift), logp + 2 * drift)
    return torch.where(torch.isfinite(logp) & torch.isfinite(logq), within.to(logq.dtype), logq)
