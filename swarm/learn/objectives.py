"""Objectives: a method is a frozen record of five parts, and one line of torch computes the loss of each.

Every policy-gradient method of this family descends along

    -sum_it a_it * A_i * phi_it * grad logp_it  +  beta * sum_it a_it * kl'_it * grad logp_it

so a method says: which advantage A (B,), which ratio and which trust region (together phi (B,T)), how tokens
are reduced (a (B,T)), and which KL term. In comes a Batch of whole groups, out comes a Loss whose gradient is
the sum above; its value is a surrogate without a meaning of its own. B completions, T tokens, G completions
of one prompt under one policy version. Notation: logp learner, logq sampler, lp and lq their scores of a
completion (`geometric`: mean over its tokens, `full`: sum).

Invariants: the gradient of a batch is the sum of the gradients of its micro-batches as long as groups stay
whole and `total` is that of the whole batch; the gradient of several learners' batches in one is the mean of
theirs weighted by `mean_weight`, as long as each one's `total` knows of the others. Samples whose
probability under the sampler is not positive and finite get weight zero: they cannot have been sampled. Not
handled here: where the tensors come from, averaging between learners, the staleness window.
"""

from __future__ import annotations

import difflib
import importlib
import math
import traceback
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from swarm.learn import trust_region
from swarm.learn.kl import KL_SLOPES, kl_slope
from swarm.learn.learners.batch import LOG_MAX, Batch, BatchView, Total, difference, total_of, view_of
from swarm.learn.methods import METHODS
from swarm.learn.parts import (
    CENTRES,
    INFINITE,
    RATIO_READS,
    RATIOS,
    REDUCTIONS,
    SCALES,
    Advantage,
    Kl,
    Objective,
    Ratio,
    TrustRegion,
    sequence_weight,
)

__all__ = [
    "OBJECTIVES",
    "Advantage",
    "Batch",
    "Kl",
    "Loss",
    "Objective",
    "Ratio",
    "Total",
    "TrustRegion",
    "check_options",
    "loss",
    "mean_weight",
    "merge",
    "objective",
    "of_idle_groups",
    "options_of",
    "weights",
]

OBJECTIVES: dict[str, Objective] = {method.name: method for method in METHODS}
NEGLIGIBLE = 1e-9
"""Weight of a batch without a token that counts: averagers require weights above 0, and beside any other
batch this one is negligible."""


class Loss(NamedTuple):
    """The loss of a batch or micro-batch."""

    value: Tensor
    """Scalar; only its gradient is meaningful."""
    metrics: dict[str, float]
    total: Total
    """The Total of this (micro-)batch alone, for `merge`."""
    advantage: Tensor
    """(B,)"""
    weight: Tensor
    """(B,) the mean of phi over a completion's tokens: 0 where the trust region left nothing of it."""


def objective(name: str, options: Mapping[str, float | str | bool] | None = None) -> Objective:
    """The method `name` with parts overridden; `package.module:NAME` is an Objective of the user's own.

    Options: centre, scale, ratio, score, over, mix, ess, trust (with its authors' constants), eps (both
    sides), lo, hi, dual, against, veto, edge, reduce, kl (its weight), kl_kind, kl_against. Raises ValueError
    for an unknown name, option or member, naming the nearest, and for an Objective of the user's own with a
    part that is in no table.
    """
    chosen = _imported(name) if ":" in name else OBJECTIVES.get(name)
    if chosen is None:
        raise ValueError(
            f"there is no objective {name!r}{_nearest(name, OBJECTIVES)}; known:"
            f" {', '.join(sorted(OBJECTIVES))}"
        )
    for option, value in (options or {}).items():
        if option not in _OPTIONS:
            raise ValueError(f"objective {name} has no option {option!r}{_nearest(option, _OPTIONS)}")
        chosen = _override(chosen, option, value)
    return chosen


def options_of(method: Objective) -> tuple[str, ...]:
    """Options that affect this method."""
    ratio, trust = method.ratio, method.trust
    read = {
        "ratio": {"kind", *RATIO_READS.get(ratio.kind, Ratio.__dataclass_fields__)},
        "trust": {
            "kind",
            "veto",
            *trust_region.TRUST_READS.get(trust.kind, TrustRegion.__dataclass_fields__),
        },
        "kl": {"weight", *(("kind", "against") if method.kl.weight > 0 else ())},
    }
    if trust.veto != "none":
        read["trust"].add("edge")
    return tuple(
        option
        for option, (part, fields, _) in _OPTIONS.items()
        if part not in read or not read[part].isdisjoint(fields)
    )


def check_options(method: Objective, options: Iterable[str]) -> None:
    """Raise ValueError for options of this method that it does not read: they would change nothing."""
    read = options_of(method)
    if spare := [option for option in options if option not in read]:
        kl = "" if method.kl.weight > 0 else ", without a KL term"
        raise ValueError(
            f"objective {method.name} does not read {', '.join(spare)}: with the ratio {method.ratio.kind!r},"
            f" the trust region {method.trust.kind!r} and the veto {method.trust.veto!r}{kl} it reads"
            f" {', '.join(read)}; leave out what it does not read"
        )


@torch.no_grad()
def weights(objective: Objective, batch: Batch) -> tuple[Tensor, Tensor]:
    """Advantage (B,) and phi (B, T) of a batch of whole groups, float32, without gradient; phi is 0 where
    mask is 0."""
    return _weigh(objective, batch, view_of(batch))


def _weigh(objective: Objective, batch: Batch, view: BatchView) -> tuple[Tensor, Tensor]:
    log_w = RATIOS[objective.ratio.kind](view, objective.ratio)
    # A baseline made of weights takes them as they will count: one beyond its cap must not own the group's
    # mean.
    top = math.log(1 + objective.trust.hi) if objective.trust.kind == "cap" else LOG_MAX
    w = sequence_weight(view, log_w.clamp(max=top))
    advantage = SCALES[objective.advantage.scale](CENTRES[objective.advantage.centre](view, w), view)
    phi = trust_region.phi(objective.trust, view, batch, log_w, advantage)
    phi = torch.where(view.mask & view.possible[:, None], phi, 0.0)
    return advantage, torch.nan_to_num(phi, nan=0.0)


def loss(objective: Objective, batch: Batch) -> Loss:
    """The loss of a batch (or of a micro-batch, see Batch.total) and its metrics. Works in float32."""
    with torch.no_grad():
        view = view_of(batch)
        advantage, phi = _weigh(objective, batch, view)
        per_token = REDUCTIONS[objective.reduce](view)
        coefficient = per_token * (
            advantage[:, None] * phi - objective.kl.weight * kl_slope(objective.kl, batch, view)
        )
        if batch.silent is not None:
            coefficient = coefficient.masked_fill(batch.silent[:, None], 0.0)
    # -inf * 0 is nan: an impossible token must not reach the product, not even with coefficient zero.
    live = view.mask & torch.isfinite(batch.logp)
    value = -(coefficient * torch.where(live, batch.logp.float(), 0.0)).sum()
    weight = phi.sum(-1) / view.length
    total = view.total if batch.total is None else total_of(batch)
    return Loss(value, _metrics(view, weight, batch), total, advantage, weight)


def of_idle_groups(lengths: Sequence[Sequence[int]], rewards: Sequence[Sequence[float]]) -> Loss:
    """The loss of groups that teach nothing (`Objective.teaches`), without log-probabilities: its metrics are
    those of lengths and rewards alone."""
    total = Total.of(lengths, rewards)
    nothing = torch.zeros(total.sequences)
    reward, length = float(total.reward.mean()), float(total.length.mean())
    return Loss(nothing.sum(), {"reward": reward, "flat": 1.0, "length": length}, total, nothing, nothing)


def mean_weight(objective: Objective, total: Total, size: int, horizon: float) -> float:
    """Weight of a batch's gradient in a mean with those of others, such that the mean is the gradient of all
    of them in one batch.

    In groups of `size` completions that are all as long as `horizon`: above 0, and at most the number of
    groups.
    """
    reduction = REDUCTIONS[objective.reduce]
    most = {"group": 1.0, "completion": size, "token": size * horizon}[reduction.of]
    return max(reduction.count(total) / most, NEGLIGIBLE)


def merge(losses: Sequence[Loss]) -> dict[str, float]:
    """Metrics of a batch from those of its micro-batches: means by groups, sequences or tokens, and the
    maximum of maxima; each over the micro-batches that have it."""
    merged: dict[str, float] = {}
    for name in dict.fromkeys(name for part in losses for name in part.metrics):
        having = [part for part in losses if name in part.metrics]
        values = [part.metrics[name] for part in having]
        if name == "weight_max":
            merged[name] = max(values)
            continue
        counts = [getattr(part.total, _COUNTED_BY.get(name, "groups")) for part in having]
        merged[name] = sum(v * n for v, n in zip(values, counts, strict=True)) / max(sum(counts), 1)
    return merged


# --- metrics ------------------------------------------------------------------------------------------------

_COUNTED_BY = {
    "kl": "tokens",
    "entropy": "tokens",
    "reward": "sequences",
    "length": "sequences",
    "zero": "sequences",
}


@torch.no_grad()
def _metrics(view: BatchView, w: Tensor, batch: Batch) -> dict[str, float]:
    """`w` (B,) is each sample's weight, after the trust region.

    kl: k3 estimate of KL(sampler || learner), nats per token; ess: (sum w)^2 / (G sum w^2), mean over groups,
    0 where all weights are; weight_var: variance within groups, mean over groups; flat: groups that teach
    nothing.
    """
    total, square = view.sum(w), view.sum(w**2)
    ess = torch.where(square > 0, total**2 / (view.count * square.clamp(min=1e-30)), 0.0)
    variance = (square / view.count - (total / view.count) ** 2).clamp(min=0)
    spread = view.sum((CENTRES["group-mean"](view, w) != 0).float())
    d = difference(view, batch.logq)
    tokens = view.mask.sum().clamp(min=1)
    metrics = {
        "reward": view.reward.mean(),
        "kl": torch.where(view.mask, d.exp() - d - 1, 0.0).sum() / tokens,
        "ess": ess.mean(),
        "weight_var": variance.mean(),
        "weight_max": w.max(),
        "zero": (w == 0).float().mean(),
        "flat": (spread == 0).float().mean(),
        "length": view.mask.sum(-1).float().mean(),
    }
    if batch.entropy is not None:
        metrics["entropy"] = torch.where(view.mask, batch.entropy.float(), 0.0).sum() / tokens
    return {name: float(value) for name, value in metrics.items()}


# --- options ------------------------------------------------------------------------------------------------

_SCORES = dict.fromkeys(("geometric", "full"))
_SHARES = ("mix", "ess")
_PARTS = {"advantage": Advantage, "ratio": Ratio, "trust": TrustRegion, "kl": Kl}
_CONSTANTS = {method.trust.kind: method.trust.constants for method in METHODS if method.trust.constants}
"""Kind of trust region -> its authors' constants, for those that have some."""

_OPTIONS: dict[str, tuple[str, tuple[str, ...], Mapping[str, object] | None]] = {
    # option -> part, fields it sets, members it chooses among (None: a number of at least 0)
    "centre": ("advantage", ("centre",), CENTRES),
    "scale": ("advantage", ("scale",), SCALES),
    "ratio": ("ratio", ("kind",), RATIOS),
    "score": ("ratio", ("score",), _SCORES),
    "over": ("ratio", ("over",), dict.fromkeys(("q", "mean", "p"))),
    "mix": ("ratio", ("mix",), None),
    "ess": ("ratio", ("ess",), None),
    "trust": ("trust", ("kind",), trust_region.TRUSTS),
    "eps": ("trust", ("lo", "hi"), None),
    "lo": ("trust", ("lo",), None),
    "hi": ("trust", ("hi",), None),
    "dual": ("trust", ("dual",), None),
    "against": ("trust", ("against",), dict.fromkeys(("sampler", "prox", "blend"))),
    "veto": ("trust", ("veto",), dict.fromkeys(("none", "token", "drift"))),
    "edge": ("trust", ("edge",), None),
    "reduce": ("", ("reduce",), REDUCTIONS),
    "kl": ("kl", ("weight",), None),
    "kl_kind": ("kl", ("kind",), KL_SLOPES),
    "kl_against": ("kl", ("against",), dict.fromkeys(("sampler", "ref"))),
}


def _imported(path: str) -> Objective:
    """The Objective that `package.module:NAME` is."""
    module, _, name = path.partition(":")
    if not all(word.isidentifier() for word in (*module.split("."), name)):
        raise ValueError(f"the objective {path!r} is not written as package.module:NAME")
    try:
        found = getattr(importlib.import_module(module), name)
    except (Exception, SystemExit) as error:  # a module may do anything
        raise ValueError(f"the objective {path!r} cannot be imported: {_described(error)}") from error
    if not isinstance(found, Objective):
        raise ValueError(
            f"{path} is a {type(found).__name__}, it has to be a swarm.learn.objectives.Objective"
        )
    _check(path, found)
    return found


def _described(error: BaseException) -> str:
    """An import's error: with the file and its line, where they are not ours."""
    if isinstance(error, SyntaxError):
        return f"{type(error).__name__}: {error.msg} ({error.filename} line {error.lineno})"
    ours = (__file__, importlib.__file__)
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if frame.filename not in ours and not frame.filename.startswith("<frozen"):
            return f"{type(error).__name__}: {error} ({frame.filename} line {frame.lineno})"
    return f"{error}; its module must be in Python's path"


def _check(path: str, found: Objective) -> None:
    """Every part is in its table, its numbers are those of options, and a known trust region has its
    constants: in the middle of a step it would be too late."""
    for part, kind in _PARTS.items():
        if not isinstance(value := getattr(found, part), kind):
            raise ValueError(
                f"{path} has {part} {value!r}, it has to be a swarm.learn.objectives.{kind.__name__}"
            )
    for option, (part, fields, members) in _OPTIONS.items():
        for field in fields:
            value = getattr(getattr(found, part) if part else found, field)
            if part == "trust" and value == INFINITE:
                continue  # no edge
            if why := _unfit(option, value, members):
                where, near = f"{part}.{field}" if part else field, _nearest(str(value), members or {})
                raise ValueError(f"{path} has {where} {value!r}{near}{why}")
    _check_constants(path, found.trust)


def _check_constants(path: str, trust: TrustRegion) -> None:
    numbers, constants = trust.constants, _CONSTANTS.get(trust.kind)
    if not isinstance(numbers, tuple) or not all(map(_is_number, numbers)):
        raise ValueError(f"{path} has trust.constants {numbers!r}, it has to be a tuple of finite numbers")
    if constants is not None and len(numbers) != len(constants):
        raise ValueError(
            f"{path} has {len(numbers)} trust.constants, the region {trust.kind!r} takes {len(constants)};"
            f" its authors' are {constants}"
        )


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _unfit(option: str, value: Any, members: Mapping[str, object] | None) -> str:
    """Why a part cannot have this value, in words that follow the value; empty where it can."""
    if members is not None:
        if isinstance(value, str) and value in members:
            return ""
        return f"; known: {', '.join(members)}"
    if not _is_number(value) or value < 0:
        return ", it has to be a number of at least 0"
    return ", a share is at most 1" if option in _SHARES and value > 1 else ""


def _override(chosen: Objective, option: str, value: float | str | bool) -> Objective:
    part, fields, members = _OPTIONS[option]
    if why := _unfit(option, value, members):
        raise ValueError(f"option {option} of objective {chosen.name} is {value!r}{why}")
    if members is None:
        value = float(value)
    changes: dict[str, Any] = dict.fromkeys(fields, value)
    if option == "trust" and value != chosen.trust.kind:
        changes["constants"] = _CONSTANTS.get(str(value), ())
    if not part:
        return replace(chosen, **changes)
    whole: dict[str, Any] = {part: replace(getattr(chosen, part), **changes)}
    return replace(chosen, **whole)


def _nearest(word: str, known: Mapping[str, object]) -> str:
    close = difflib.get_close_matches(word, list(known), n=1)
    return f" (did you mean {close[0]!r}?)" if close else ""
