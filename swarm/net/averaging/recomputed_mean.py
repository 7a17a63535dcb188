"""Recomputes the mean of a round from its members' tensors.

    vectors of all members + MeanRecipe --parts as swarm.net.averaging.allreduce cuts, encodes and adds
    them--> the mean

Not handled: the source of the vectors.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from hivemind.averaging.partition import TensorPartContainer

from swarm.core.gradient_checks.norm_screening import Allowance, AnnouncedNorm, screened_weights
from swarm.core.gradient_checks.step_recipe import MeanRecipe
from swarm.net.averaging.codec import Codec
from swarm.net.averaging.weighted_mean import weighted_mean
from swarm.norm import norm


def mean_again(
    vectors: Sequence[torch.Tensor], recipe: MeanRecipe, groups: int, compression: str
) -> torch.Tensor:
    """The mean of flat float32 `vectors`, of the recipe's members in their order, bit for bit as a round of
    these members made it; `groups` are those of the run's whole batch."""
    codec, mean = Codec(compression), torch.empty_like(vectors[0])
    claims = [AnnouncedNorm(one.weight, one.norm, one.usual) for one in recipe.members]
    judged = screened_weights(claims, groups)
    fractions, weights = [one.share for one in recipe.members], [one.weight for one in judged]
    of_each = [
        TensorPartContainer([one], fractions, compression=codec, part_size_bytes=recipe.part)
        for one in (*vectors, mean)
    ]
    for reducer, into in enumerate(of_each[-1]._input_parts_by_peer):
        allowed = [Allowance(claim.norm) for claim in claims]
        for number, (part, _) in enumerate(into):
            come = []
            for k, container in enumerate(of_each[:-1]):
                its, _ = container._input_parts_by_peer[reducer][number]
                share = judged[k].share
                if k != reducer:
                    its = codec.read(codec.compress(its), its.shape)
                    share *= allowed[k].take(norm(its))
                come.append(its * share if share != 1 else its)
            part.copy_(codec.as_sent(weighted_mean(come, weights))[1])
    return mean
