"""A sequence MDP that is small enough to enumerate: all completions, their probabilities, the exact policy
gradient.

    (horizon, seed) --> tree of all prefixes, sampler's logits, rewards
        --(kl)--> learner's logits, exact gradient there

The policy is a softmax over SYMBOLS at every prefix (full history, no sharing), one of which ends the
completion, so that lengths are ragged; at the horizon a completion is cut. The learner stands `kl` nats a
token from its sampler, half the way by learning (the sampler's own exact gradient) and half by noise.
Invariant: everything but the learner is the same at every kl. Prompts are not modelled: all groups share one.
Shapes: L sequences, T = horizon, S prefixes, K symbols; probabilities are float64.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

import torch
from torch import Tensor

SYMBOLS = 3
"""Symbols: two and the end; the tree doubles with each step, and eight steps are still 511 sequences."""

SKEW = 1.2
"""Standard deviation of the sampler's logits: about 0.8 nats a token, sure of some steps and unsure of
others."""

LATE = 1.2
"""Subtracted from the end symbol's logits, so that a completion uses about two thirds of its horizon."""

CORRECT = 0.25
"""Largest probability that the sampler is right: most groups of eight teach something, as in a curriculum
that works."""

FORMAT = 0.2
"""Reward of a completion that ended by itself and is wrong, in instances with partial credit."""


@dataclass(frozen=True)
class Tree:
    node: Tensor
    """(L, T) int, prefix at which each token is chosen; 0 behind the end."""
    token: Tensor
    """(L, T) int; 0 behind the end."""
    mask: Tensor
    """(L, T) bool, the end token included."""
    nodes: int

    @property
    def ended(self) -> Tensor:
        """(L,) bool: the completion has its end token, it was not cut."""
        return (self.mask & (self.token == SYMBOLS - 1)).any(-1)


@dataclass(frozen=True)
class Instance:
    tree: Tree
    sampler: Tensor
    """(S, K) logits of q, which draws."""
    learner: Tensor
    """(S, K) logits of p, which learns."""
    reward: Tensor
    """(L,) in [0, 1]."""


def tree(horizon: int) -> Tree:
    """All sequences of at most `horizon` tokens; a prefix's children have the ids b*s + 1 ... b*s + b, b =
    SYMBOLS - 1."""
    inner, end = SYMBOLS - 1, SYMBOLS - 1
    paths = [(*prefix, end) for size in range(horizon) for prefix in product(range(inner), repeat=size)]
    paths += list(product(range(inner), repeat=horizon))
    node, token, mask = (torch.zeros(len(paths), horizon, dtype=torch.long) for _ in range(3))
    for i, path in enumerate(paths):
        at = 0
        for t, symbol in enumerate(path):
            node[i, t], token[i, t], mask[i, t] = at, symbol, 1
            at = inner * at + 1 + symbol
    return Tree(node, token, mask.bool(), sum(inner**size for size in range(horizon)))


def instance(horizon: int, kl: float, seed: int) -> Instance:
    """The world of this horizon and seed with a learner `kl` nats a token away from its sampler.

    Right are random sequences that end by themselves, as many as fit into CORRECT; odd seeds give FORMAT for
    having ended.
    """
    rng = torch.Generator().manual_seed(1000 * horizon + seed)
    all_ = tree(horizon)
    sampler = SKEW * torch.randn(all_.nodes, SYMBOLS, generator=rng, dtype=torch.float64)
    sampler[:, SYMBOLS - 1] -= LATE
    mass = log_probs(all_, sampler).sum(-1).exp()
    right = _right(mass, all_.ended, rng)
    reward = torch.where(right, 1.0, torch.where(all_.ended, FORMAT * (seed % 2), 0.0)).double()
    noise = torch.randn(sampler.shape, generator=rng, dtype=torch.float64)
    away = _unit(all_, sampler, exact(all_, sampler, reward)[1]) + _unit(all_, sampler, noise)
    return Instance(all_, sampler, sampler + _stride(all_, sampler, away, kl) * away, reward)


def _right(mass: Tensor, ended: Tensor, rng: torch.Generator) -> Tensor:
    """(L,) bool: the least likely that ended, and at random those others that keep the mass below CORRECT."""
    right = torch.zeros_like(ended)
    right[torch.where(ended, mass, torch.inf).argmin()] = True
    for i in torch.randperm(len(mass), generator=rng).tolist():
        if ended[i] and mass[right].sum() + mass[i] < CORRECT:
            right[i] = True
    return right


def log_probs(all_: Tree, logits: Tensor) -> Tensor:
    """(L, T) of every token of every sequence, 0 behind the end; nats."""
    return torch.where(all_.mask, logits.log_softmax(-1)[all_.node, all_.token], 0.0)


def exact(all_: Tree, logits: Tensor, reward: Tensor) -> tuple[Tensor, Tensor]:
    """J = sum_y p(y) R(y) and its gradient (S, K) = sum_y p(y) R(y) grad log p(y)."""
    value = log_probs(all_, logits).sum(-1).exp() * reward
    everyone = torch.arange(len(value))
    one = gradients(
        all_, logits, everyone, value[:, None].expand(all_.mask.shape), torch.zeros_like(everyone), 1
    )
    return value.sum(), one.view(SYMBOLS, all_.nodes).T


def gradients(
    all_: Tree, logits: Tensor, sequence: Tensor, coefficient: Tensor, owner: Tensor, owners: int
) -> Tensor:
    """sum over an owner's tokens of coefficient * grad log p(token): (owners, K*S), symbol by symbol,
    float64.

    `sequence` (B,) are rows of the tree, `coefficient` (B, T) is read where the tree's mask is 1, `owner`
    (B,) in [0, owners).
    """
    mask = all_.mask[sequence]
    at = (owner[:, None] * SYMBOLS + all_.token[sequence]) * all_.nodes + all_.node[sequence]
    chosen = torch.bincount(
        at[mask], weights=coefficient.double()[mask], minlength=owners * SYMBOLS * all_.nodes
    )
    chosen = chosen.view(owners, SYMBOLS, all_.nodes)
    return chosen.addcmul_(chosen.sum(1, keepdim=True), logits.softmax(-1).T, value=-1).flatten(1)


def divergence(all_: Tree, sampler: Tensor, learner: Tensor) -> float:
    """KL(q || p) of whole sequences over the mean length under q: nats a token."""
    logq, logp = log_probs(all_, sampler), log_probs(all_, learner)
    mass = logq.sum(-1).exp()
    return float((mass * (logq - logp).sum(-1)).sum() / (mass * all_.mask.sum(-1)).sum())


def _unit(all_: Tree, logits: Tensor, direction: Tensor) -> Tensor:
    """Of length 1 in the metric in which KL is half the square of the distance, so that half the way is half
    the KL."""
    probs, reach = logits.softmax(-1), _reach(all_, logits)
    variance = (probs * direction**2).sum(-1) - (probs * direction).sum(-1) ** 2
    return direction / (reach * variance).sum().sqrt()


def _reach(all_: Tree, logits: Tensor) -> Tensor:
    """(S,) probability that a completion passes each prefix."""
    mass = log_probs(all_, logits).sum(-1).exp()[:, None].expand(all_.mask.shape)
    return torch.bincount(all_.node[all_.mask], weights=mass[all_.mask], minlength=all_.nodes)


def _stride(all_: Tree, sampler: Tensor, direction: Tensor, kl: float) -> float:
    """How far along the direction KL is `kl`. KL is convex along any line through q, where it is 0: bisection
    finds it."""
    if kl == 0:
        return 0.0
    low, high = 0.0, 1.0
    while divergence(all_, sampler, sampler + high * direction) < kl:
        low, high = high, 2 * high
    for _ in range(50):
        middle = (low + high) / 2
        if divergence(all_, sampler, sampler + middle * direction) < kl:
            low = middle
        else:
            high = middle
    return (low + high) / 2
