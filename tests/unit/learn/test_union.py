"""N learners are one learner: the weighted mean of their gradients is that of one learner on the union of
their batches."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from objective_parts import METHODS

from swarm.learn.kl import KL_SLOPES
from swarm.learn.learners.base_learner import Gradient
from swarm.learn.learners.batch import merge_moments, moments
from swarm.learn.learners.learner import Learner
from swarm.learn.models.policy import TokenScores
from swarm.learn.models.tabular import Tabular
from swarm.learn.objectives import Total
from swarm.learn.parts import CENTRES, OF_ROUND, REDUCTIONS, SCALES
from swarm.settings.config import BatchSize, Optimizer, Run, Sampling
from swarm.settings.config import ObjectiveSettings as Chosen
from swarm.types import Array, Digest, Group, PeerId, Times

LONGEST, SIZE = 12, 4
TWO, FIVE = (3, 9), (2, 7, 1, 4, 3)
"""Groups of each learner."""

Options = dict[str, float | str | bool]
Batch = tuple[list[Group], list[str], list[tuple[float, ...]]]


class Ragged(Tabular):
    """A table whose completions may be shorter than it."""

    def logprobs(
        self, prompts: Sequence[str], rows: Sequence[Sequence[int]], temperature: float
    ) -> TokenScores:
        scored = super().logprobs(prompts, [[*row, *[0] * (LONGEST - len(row))] for row in rows], temperature)
        return scored._replace(mask=torch.arange(LONGEST) < torch.tensor([len(row) for row in rows])[:, None])


def learner(name: str, options: Options, micro: int = 32) -> Learner:
    run = Run(
        objective=Chosen(name=name, options=options),
        sampling=Sampling(group_size=SIZE, max_tokens=LONGEST),
        batch=BatchSize(micro=micro),
        optimizer=Optimizer(lr=1e-3),
    )
    made = Learner(Ragged(8, LONGEST, 8), run)
    with torch.no_grad():
        for parameter in made.policy.module.parameters():
            parameter.copy_(0.5 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(7)))
    return made


def batch(of: Learner, shares: Sequence[int]) -> Batch:
    """Each learner's completions are of another length and right more or less often; one learner's only group
    teaches nothing."""
    rng = np.random.default_rng(3)
    out: Batch = ([], [], [])
    for index, owner in enumerate(np.repeat(np.arange(len(shares)), shares).tolist()):
        prompt = str(int(rng.integers(8)))
        longest = 3 + (owner * 7) % (LONGEST - 2)
        rows = [rng.integers(0, 8, rng.integers(1, longest + 1)).tolist() for _ in range(SIZE)]
        scored = of.policy.logprobs([prompt] * SIZE, rows, 1.0)
        drift = 0.2 * torch.from_numpy(rng.standard_normal(tuple(scored.logp.shape)))
        tokens = np.concatenate(rows).astype("<i4")
        logprobs = (scored.logp.detach() + drift).clamp(max=-1e-3)[scored.mask].numpy().astype("<f4")
        right = rng.random(SIZE) < (0.2 + 0.15 * owner)
        rewards = (
            (1.0,) * SIZE
            if index in (2, 7, 9)
            else tuple(np.where(right, 1.0, 0.25 * (np.arange(SIZE) % 2)).tolist())
        )
        group = Group(
            id=str(index),
            sampler=PeerId("s"),
            task=index,
            version=0,
            weights=Digest(""),
            draw=0,
            seed=index,
            lengths=tuple(map(len, rows)),
            tokens=Array(dtype="int32", shape=tokens.shape, data=tokens.tobytes()),
            logprobs=Array(dtype="float32", shape=logprobs.shape, data=logprobs.tobytes()),
            rewards=rewards,
            times=Times(released=100.0, fetched=100.0, used=100.0, finished=101.0, sent=101.0),
        )
        for held, what in zip(out, (group, prompt, rewards), strict=True):
            held.append(what)  # type: ignore[arg-type]
    return out


def gradients(of: Learner, whole: Batch, shares: Sequence[int]) -> list[Gradient]:
    """Each learner's, which has heard of the others' batches."""
    cuts = [slice(a, b) for a, b in pairwise(accumulate(shares, initial=0))]
    closed = [Total.of([group.lengths for group in whole[0][cut]], whole[2][cut]).closed for cut in cuts]
    others = [tuple(closed[:k] + closed[k + 1 :]) for k in range(len(cuts))]
    return [
        of.gradient(*(held[cut] for held in whole), 105.0, told)
        for cut, told in zip(cuts, others, strict=True)
    ]


def mean(parts: Sequence[Gradient]) -> torch.Tensor:
    return sum(part.vector.double() * part.weight for part in parts) / sum(part.weight for part in parts)  # type: ignore[return-value]


def off(vector: torch.Tensor, true: torch.Tensor) -> float:
    """The error over the norm of what is true."""
    return float((vector.double() - true.double()).norm() / true.double().norm())


@pytest.mark.parametrize("name", METHODS)
def test_the_weighted_mean_of_unequal_learners_is_one_learner_on_the_union(name: str) -> None:
    of = learner(name, {})
    whole = batch(of, FIVE)
    union, parts = of.gradient(*whole, 105.0), gradients(of, whole, FIVE)
    assert union.vector.norm() > 1e-4
    assert off(mean(parts), union.vector) < 1e-6
    assert all(0 < part.weight <= part.groups for part in parts)


@pytest.mark.parametrize(
    ("part", "member"),
    [
        *(("centre", centre) for centre in CENTRES),
        *(("scale", scale) for scale in SCALES),
        *(("reduce", reduce) for reduce in REDUCTIONS),
        *(("kl_kind", kind) for kind in KL_SLOPES),
    ],
)
def test_so_it_is_for_every_part_that_counts_more_than_a_token_with_a_kl_term(part: str, member: str) -> None:
    """Ratios and trust regions are of one group."""
    of = learner("cispo", {"kl": 0.1, part: member})
    whole = batch(of, TWO)
    parts = gradients(of, whole, TWO)
    assert off(mean(parts), of.gradient(*whole, 105.0).vector) < 1e-6
    assert all(0 < each.weight <= each.groups for each in parts)


@pytest.mark.parametrize("scale", SCALES)
def test_what_the_others_hold_moves_the_gradient_of_those_scales_alone_that_are_of_the_round(
    scale: str,
) -> None:
    of = learner("cispo", {"scale": scale})
    whole = batch(of, TWO)
    alone = of.gradient(*(held[:3] for held in whole), 105.0).vector
    assert (
        (off(gradients(of, whole, TWO)[0].vector, alone) > 1e-3)
        == (scale in OF_ROUND)
        == of.objective.of_round
    )


@pytest.mark.parametrize("name", ["ppo_clip", "gpg", "bnpo_beta"])
def test_micro_batches_take_in_the_others_too(name: str) -> None:
    whole, shares = batch(learner(name, {}), (4, 8)), (4, 8)
    pieces, one_piece = (gradients(learner(name, {}, micro), whole, shares) for micro in (3, 32))
    assert all(
        off(a.vector, b.vector) < 1e-6 and a.weight == b.weight
        for a, b in zip(pieces, one_piece, strict=True)
    )


@given(st.lists(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=9), min_size=1, max_size=5))
def test_the_moments_of_sets_are_together_those_of_all_their_numbers(sets: list[list[float]]) -> None:
    parts = [torch.tensor(one, dtype=torch.float64) for one in sets]
    found, true = merge_moments([moments(one) for one in parts]), moments(torch.cat(parts))
    assert found.count == true.count
    assert (found.mean, found.square) == pytest.approx((true.mean, true.square), rel=1e-9, abs=1e-3)


def test_equal_pass_rates_everywhere_scale_nothing_however_their_mean_is_rounded() -> None:
    rewards = [(0.1, 0.2, 0.0, 0.0)] * 7
    closed = Total.of([(1, 1, 1, 1)] * 3, rewards[:3]).closed
    of = learner("bnpo_beta", {})
    groups, prompts, _ = batch(of, (7,))
    plain = learner("bnpo_beta", {"scale": "none"}).gradient(groups, prompts, rewards, 105.0).vector
    assert off(of.gradient(groups, prompts, rewards, 105.0, (closed,)).vector, plain) < 1e-6
