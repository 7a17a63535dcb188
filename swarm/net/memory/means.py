"""What the members of a simulated round have where one of them reduces falsely.

    the mean, spans of the reducers, what a false one hands to each member
        -> what each member has, and how much of its own part is in each reducer's means

Norms are held and presences noted as among real learners (swarm.net.averaging.allreduce). A member that hands
out what it should is asked nothing. Not handled here: who reduces nothing any more (swarm.net.memory.rounds).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING

from blake3 import blake3

from swarm.core.gradient_checks.clipping import Agreement
from swarm.core.gradient_checks.norm_screening import Allowance
from swarm.core.gradient_checks.reducer_checks import presence
from swarm.types import PeerId

if TYPE_CHECKING:
    from torch import Tensor

Hands = Callable[[PeerId, "Tensor"], "Tensor"]
"""A member, the mean of the values that I reduce -> what I hand to it instead."""


def spans(reduced: Mapping[PeerId, int], values: int) -> dict[PeerId, slice]:
    """Reducer -> its values of a vector, by what each reduces."""
    total = sum(reduced.values())
    ends = [values * part // total for part in accumulate(reduced.values(), initial=0)]
    return {peer: slice(*ends) for peer, ends in zip(reduced, pairwise(ends), strict=True)}


def flat(tensors: Sequence[Tensor]) -> Tensor:
    """(values,) float32, a copy."""
    import torch

    return torch.cat([tensor.float().reshape(-1) for tensor in tensors])


def digest(tensors: Sequence[Tensor]) -> bytes:
    """Of the bytes of a mean."""
    return blake3(flat(tensors).numpy().tobytes()).digest()


def hand_out(
    to: PeerId,
    tensors: Sequence[Tensor],
    hands: Mapping[PeerId, Hands],
    cut: Mapping[PeerId, slice],
    largest: float,
) -> Tensor:
    """Replace in place the mean that a member has by what each reducer hands to it: nothing that is not
    finite, and nothing beyond `largest`, the largest norm that a mean can have. Returns all of it, flat."""
    from swarm.norm import norm

    has = flat(tensors)
    for reducer, its in hands.items():
        told = its(to, has[cut[reducer]].clone())
        size = norm(told)
        has[cut[reducer]] = told * Allowance(largest).take(size) if math.isfinite(size) else told.zero_()
    for tensor, values in zip(tensors, has.split([each.numel() for each in tensors]), strict=True):
        tensor.copy_(values.view_as(tensor))
    return has


def presences(part: Tensor, has: Tensor, cut: Mapping[PeerId, slice], share: float) -> dict[str, float]:
    """Reducer -> how much of my part, which has this share of all weights, is in what I have of it."""
    found = dict[str, float]()
    for peer, span in cut.items():
        mine, mean = part[span], has[span]
        agreement = Agreement(float(mine @ mean), float(mine @ mine), float(mean @ mean))
        if agreement.mine * share > 0:
            found[peer] = presence(agreement, share)
    return found
