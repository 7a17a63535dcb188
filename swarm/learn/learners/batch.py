"""A batch of whole groups, and the sanitized view of it that the parts of an objective compute with.

    Batch (tensors as they come, padding and -inf included)
        --view_of--> BatchView (float32, detached, 0 where masked) --> parts

B completions, T tokens, G completions of one prompt under one policy version; logp learner, logq sampler.
Invariant: nothing is read where mask is 0, and a completion with a token that its sampler cannot have drawn
(logq not finite) has weight 0, in its own gradient and in the statistics of its group.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from swarm.types import BatchRewards, Moments

LOG_MAX = 20.0
"""exp(20) is 5e8: a larger ratio carries no information but its exponential would overflow float32 at 88."""


@dataclass(frozen=True)
class Total:
    """Lengths, rewards and groups of a whole batch, for statistics over it; each micro-batch gets that of the
    whole batch. Known before any forward pass. N completions."""

    length: Tensor
    """(N,) tokens of each completion."""
    reward: Tensor
    """(N,)"""
    group: Tensor
    """(N,) int, equal within a group."""
    others: tuple[BatchRewards, ...] = ()
    """The rewards of the other learners' batches in the same round."""

    @classmethod
    def of(
        cls,
        lengths: Sequence[Sequence[int]],
        rewards: Sequence[Sequence[float]],
        others: tuple[BatchRewards, ...] = (),
    ) -> Total:
        """From completions' lengths in tokens and rewards, group by group."""
        return cls(
            torch.tensor([n for group in lengths for n in group], dtype=torch.float64),
            torch.tensor([r for group in rewards for r in group], dtype=torch.float64),
            torch.repeat_interleave(torch.tensor([len(group) for group in lengths])),
            others,
        )

    @cached_property
    def index(self) -> Tensor:
        """(N,) int: the completion's group, numbered from 0."""
        return torch.unique(self.group, return_inverse=True)[1]

    @cached_property
    def groups(self) -> int:
        return int(self.index.max()) + 1

    @property
    def sequences(self) -> int:
        return len(self.length)

    @property
    def tokens(self) -> float:
        return float(self.length.sum())

    def by_group(self) -> tuple[tuple[tuple[int, ...], ...], tuple[tuple[float, ...], ...]]:
        """The lengths and rewards that it is `of`."""
        sizes = torch.bincount(self.index).tolist()
        lengths = tuple(tuple(map(int, each.tolist())) for each in self.length.split(sizes))
        return lengths, tuple(tuple(each.tolist()) for each in self.reward.split(sizes))

    @cached_property
    def live(self) -> Tensor:
        """(N,) bool: the rewards of the completion's group differ, so that its advantages are not all 0."""
        highest, lowest = (
            torch.full((self.groups,), start, dtype=self.reward.dtype).scatter_reduce(
                0, self.index, self.reward, how
            )
            for start, how in ((-torch.inf, "amax"), (torch.inf, "amin"))
        )
        return (highest > lowest)[self.index]

    @cached_property
    def closed(self) -> BatchRewards:
        """The rewards of this batch, without the others."""
        sums = torch.zeros(self.groups, dtype=self.reward.dtype).index_add_(0, self.index, self.reward)
        return BatchRewards(
            live=int(self.live.sum()),
            completions=moments(self.reward),
            groups=moments(sums / torch.bincount(self.index)),
        )

    @cached_property
    def round(self) -> BatchRewards:
        """The rewards of this batch and the others."""
        batches = (self.closed, *self.others)
        return BatchRewards(
            live=sum(batch.live for batch in batches),
            completions=merge_moments([batch.completions for batch in batches]),
            groups=merge_moments([batch.groups for batch in batches]),
        )


def moments(values: Tensor) -> Moments:
    """Count, mean and squared distances of `values` (N,)."""
    mean = values.double().mean()
    return Moments(count=len(values), mean=float(mean), square=float(((values.double() - mean) ** 2).sum()))


def merge_moments(sets: Sequence[Moments]) -> Moments:
    """The moments of all numbers of these sets (Chan, Golub and LeVeque 1983, eq. 2.1)."""
    count = sum(one.count for one in sets)
    mean = sum(one.count * one.mean for one in sets) / count
    return Moments(
        count=count, mean=mean, square=sum(one.square + one.count * (one.mean - mean) ** 2 for one in sets)
    )


def variance(of: Moments) -> float:
    """Sample variance (divided by N - 1); 0 for one number."""
    return of.square / (of.count - 1) if of.count > 1 else 0.0


@dataclass(frozen=True)
class Batch:
    """Whole groups. Nothing is read where mask is 0."""

    logp: Tensor
    """(B, T) learner's log-probabilities, nats; the only tensor that gradients flow through."""
    logq: Tensor
    """(B, T) sampler's log-probabilities, nats."""
    mask: Tensor
    """(B, T) 1 on completion tokens, the end token included."""
    reward: Tensor
    """(B,)"""
    group: Tensor
    """(B,) int, equal within a group; any values."""
    prox: Tensor | None = None
    """(B, T) under a proximal policy, for `against = "prox"`; None: the learner's own, before this step."""
    ref: Tensor | None = None
    """(B, T) under a reference policy, for the KL term `against = "ref"`."""
    lag: Tensor | None = None
    """(B,) versions between sampler and learner, for `against = "blend"`."""
    silent: Tensor | None = None
    """(B,) bool: completions without gradient of their own, which count in all statistics."""
    entropy: Tensor | None = None
    """(B, T) nats, of the learner's distribution; only reported."""
    horizon: float = 1.0
    """Longest completion in tokens: the constant of the `constant` reduction."""
    total: Total | None = None
    """The whole batch's, when this is a micro-batch; None: this is the whole."""


@dataclass(frozen=True)
class BatchView:
    """A batch in which every value may be read. Tensors are float32 and without gradient unless noted."""

    logp: Tensor
    """(B, T), 0 where mask is 0."""
    logq: Tensor
    """(B, T), 0 where mask is 0."""
    mask: Tensor
    """(B, T) bool."""
    possible: Tensor
    """(B,) bool: the sampler can have drawn every token."""
    length: Tensor
    """(B,) at least 1."""
    reward: Tensor
    """(B,)"""
    index: Tensor
    """(B,) int: the completion's group, numbered from 0."""
    count: Tensor
    """(groups,) completions in each."""
    total: Total
    """The whole batch's."""
    horizon: float

    @property
    def groups(self) -> int:
        return len(self.count)

    @cached_property
    def log_r(self) -> Tensor:
        """(B, T) logp - logq; -inf in completions that are not possible, 0 where mask is 0."""
        drift = torch.where(self.mask & self.possible[:, None], self.logp - self.logq, 0.0)
        return torch.where(self.mask & ~self.possible[:, None], -torch.inf, drift)

    def score(self, logprobs: Tensor, kind: str) -> Tensor:
        """(B, T) -> (B,): mean (`geometric`) or sum (`full`) over a completion's tokens."""
        total = logprobs.sum(-1)
        return total / self.length if kind == "geometric" else total

    def sum(self, values: Tensor) -> Tensor:
        """Sum over each group: (B,) -> (groups,)."""
        return torch.zeros(self.groups, dtype=values.dtype, device=values.device).index_add_(
            0, self.index, values
        )

    def mean(self, values: Tensor) -> Tensor:
        """Mean over each completion's group: (B,) -> (B,)."""
        return (self.sum(values) / self.count)[self.index]

    def lse(self, values: Tensor) -> Tensor:
        """log sum exp over each group: (B,) -> (groups,); -inf for a group without a finite member."""
        start = torch.full((self.groups,), -torch.inf, device=values.device)
        top = start.scatter_reduce(0, self.index, values, "amax")
        top = torch.where(torch.isfinite(top), top, 0.0)
        return top + self.sum((values - top[self.index]).exp()).log()


def view_of(batch: Batch) -> BatchView:
    """The view that objectives compute with."""
    mask = batch.mask.bool()
    ids, index = torch.unique(batch.group, return_inverse=True)
    logq = torch.where(mask, batch.logq.detach().float(), 0.0)
    reward = batch.reward.float()
    return BatchView(
        logp=torch.where(mask, batch.logp.detach().float(), 0.0),
        logq=logq,
        mask=mask,
        possible=torch.isfinite(logq).all(-1),
        length=mask.sum(-1).clamp(min=1).float(),
        reward=reward,
        index=index,
        count=torch.bincount(index, minlength=len(ids)).float(),
        total=batch.total or total_of(batch),
        horizon=batch.horizon,
    )


def total_of(batch: Batch) -> Total:
    """The Total of this batch's own completions."""
    return Total(
        batch.mask.bool().sum(-1).double().cpu(), batch.reward.detach().double().cpu(), batch.group.cpu()
    )


def difference(view: BatchView, other: Tensor) -> Tensor:
    """logp - other (B, T) where masked and possible, else 0; within +-20."""
    d = torch.where(view.mask & view.possible[:, None], view.logp - other.detach().float(), 0.0)
    return torch.nan_to_num(d, nan=0.0).clamp(-LOG_MAX, LOG_MAX)
