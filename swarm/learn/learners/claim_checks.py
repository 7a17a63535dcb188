"""Compares claimed log-probabilities with the learner's: evidence against the claim, and bounded values.

    logp (learner), logq (claimed), (B, T)
        --check_claims--> ClaimCheck of each group (swarm.core.intake.claimed_logprobs decides)
        --bound_logq-->   logq within the drift that the run's window allows

Both use the learner's own forward pass, which the gradient needs anyway. For an honest group `bound_logq`
changes no bit. Not handled here: the use of the ratio of the two (objectives).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from swarm.core.intake.claimed_logprobs import SLACK, ClaimCheck

Array = npt.NDArray[np.float64]

LEAST = -100.0
"""Nats: the smallest log ratio of a token; one that is impossible for the learner counts as this."""


def check_claims(
    logp: Tensor, logq: Tensor, mask: Tensor, sizes: Sequence[int], longest: int
) -> list[ClaimCheck]:
    """The claim check of each group. `logp`, `logq`: (B, T) in nats, `mask`: (B, T); group i has the next
    `sizes[i]` of the B completions, each of 1 to `longest` tokens. The formula is in
    swarm.core.intake.claimed_logprobs."""
    counts = np.asarray(sizes)
    starts, owner = np.cumsum(counts) - counts, np.repeat(np.arange(len(counts)), counts)
    inside = mask.bool().cpu().numpy()
    x = np.where(inside, (logp.detach().double().cpu() - logq.double().cpu()).numpy(), 0.0)
    x = np.clip(x, LEAST, None)
    less = np.where(inside, x - SLACK, -np.inf)

    def of_groups(values: Array) -> Array:
        """(B,) -> (groups,): log-sum-exp over each group."""
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
    return [ClaimCheck(drift=d, evidence=e) for d, e in zip(drift.tolist(), evidence.tolist(), strict=True)]


@torch.no_grad()
def bound_logq(logp: Tensor, logq: Tensor, drift: float) -> Tensor:
    """logq (B, T), moved so that logp - logq is within -2 `drift` and `drift`, nats, whatever the
    advantage's sign.

    An honest token is above the upper edge with a probability of at most exp(-drift); below the lower one its
    weight, exp(-16) at a drift of 8, is negligible. Where logp is not finite, logq stays as it is.
    """
    within = torch.minimum(torch.maximum(logq, logp - drift), logp + 2 * drift)
    return torch.where(torch.isfinite(logp) & torch.isfinite(logq), within.to(logq.dtype), logq)
