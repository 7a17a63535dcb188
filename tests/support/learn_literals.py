"""The surrogates of the papers, written out for `test_methods`: one completion and one token at a time, in
plain lists.

    LITERALS[method](world) -> the objective that is ascended; differentiable in `world.logp`

Where a paper stops the gradient, `held` is read, the log-probabilities before the step, so that finite
differences in `logp` see what autograd sees. Written from the papers, not from `swarm.learn`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

INF = float("inf")


@dataclass(frozen=True)
class World:
    """A batch as lists, a list of tokens per completion."""

    logp: list[list[Tensor]]
    held: list[list[float]]
    logq: list[list[float]]
    prox: list[list[float]]
    lag: list[float]
    reward: list[float]
    group: list[int]
    horizon: float

    @property
    def all(self) -> range:
        return range(len(self.reward))

    def mates(self, i: int) -> list[int]:
        return [j for j in self.all if self.group[j] == self.group[i]]

    def length(self, i: int) -> int:
        return len(self.logq[i])

    def rewards(self, i: int) -> list[float]:
        return [self.reward[j] for j in self.mates(i)]

    def logs(self, i: int) -> list[float]:
        return [p - q for p, q in zip(self.held[i], self.logq[i], strict=True)]


Advantage = Callable[[World, int], float]
Terms = Callable[[World, int, float], list[Tensor]]


def of(advantage: Advantage, terms: Terms, reduce: str) -> Callable[[World], Tensor]:
    """sum_i reduce_i sum_t term_it; a method of whole sequences has one term."""

    def surrogate(w: World) -> Tensor:
        total = torch.zeros((), dtype=torch.float64)
        for i in w.all:
            values = terms(w, i, advantage(w, i))
            total = total + REDUCE[reduce](w, i, len(values)) * sum(values)
        return total

    return surrogate


# --- advantages ---------------------------------------------------------------------------------------------


def mean(values: list[float]) -> float:
    return sum(values) / len(values)


def variance(values: list[float]) -> float:
    return sum((v - mean(values)) ** 2 for v in values) / max(len(values) - 1, 1)


def raw(w: World, i: int) -> float:
    return w.reward[i]


def centred(w: World, i: int) -> float:
    return w.reward[i] - mean(w.rewards(i))


def grpo(w: World, i: int) -> float:
    return centred(w, i) / (math.sqrt(variance(w.rewards(i))) + 1e-4)


def whitened(w: World, i: int) -> float:
    return centred(w, i) / (math.sqrt(variance(w.reward)) + 1e-4)


def over_mean(w: World, i: int) -> float:
    return centred(w, i) / (mean(w.rewards(i)) + 1e-4)


def others(w: World, i: int) -> float:
    rest = [w.reward[j] for j in w.mates(i) if j != i]
    return w.reward[i] - mean(rest) if rest else 0.0


def baseline(weight: Callable[[World, int], float]) -> Advantage:
    return lambda w, i: (
        w.reward[i]
        - sum(weight(w, j) * w.reward[j] for j in w.mates(i)) / sum(weight(w, j) for j in w.mates(i))
    )


def live(w: World, i: int) -> bool:
    return len(set(w.rewards(i))) > 1


def alive(w: World, i: int) -> float:
    """B / (B - M); groups or completions is the same ratio where groups have one size. The batch's share of
    completions here."""
    return centred(w, i) * len(w.all) / max(sum(live(w, j) for j in w.all), 1)


def beta(w: World, i: int) -> float:
    rates = [mean([w.reward[j] for j in w.all if w.group[j] == g]) for g in sorted(set(w.group))]
    p, m, v = mean(w.rewards(i)), mean(rates), variance(rates)
    k = max(m * (1 - m) / v - 1, 0) if v > 0 and len(rates) > 1 else 0
    a, b = 1 + k * m / 3, 1 + k * (1 - m) / 3
    if not live(w, i):
        return 0.0
    density = p ** (a - 1) * (1 - p) ** (b - 1) * math.gamma(a + b) / math.gamma(a) / math.gamma(b)
    return centred(w, i) / density


# --- terms: of tokens, of sequences, and weights without gradient times log p -------------------------------


def ppo(r: Tensor, a: float, lo: float, hi: float, dual: float = INF) -> Tensor:
    clipped = torch.minimum(r * a, r.clamp(1 - lo, 1 + hi) * a)
    return clipped if a >= 0 or dual == INF else clipped.clamp(min=dual * a)


def token(f: Callable[[Tensor, float], Tensor]) -> Terms:
    return lambda w, i, a: [f((p - q).exp(), a) for p, q in zip(w.logp[i], w.logq[i], strict=True)]


def sequence(f: Callable[[Tensor, float], Tensor], full: bool = False) -> Terms:
    def terms(w: World, i: int, a: float) -> list[Tensor]:
        whole = sum((p - q for p, q in zip(w.logp[i], w.logq[i], strict=True)), torch.zeros(()))
        return [f((whole if full else whole / w.length(i)).exp(), a)]

    return terms


def clip(lo: float = 0.2, hi: float = 0.2, dual: float = INF) -> Callable[[Tensor, float], Tensor]:
    return lambda r, a: ppo(r, a, lo, hi, dual)


def soft(r: Tensor, a: float) -> Tensor:
    tau = 1.0 if a > 0 else 1.05
    return 4 / tau * torch.sigmoid(tau * (r - 1)) * a


def hazard(w: World, i: int, a: float) -> list[Tensor]:
    ys = [1.5 * math.tanh(x / 1.5) for x in w.logs(i)]
    zetas = [math.log1p(math.exp(y)) ** 1.5 + (math.log1p(math.exp(-y)) / 0.8) ** 2 for y in ys]
    return [
        (1.5 * ((p - q) / 1.5).tanh() - z).exp() * a
        for p, q, z in zip(w.logp[i], w.logq[i], zetas, strict=True)
    ]


def held(weight: Callable[[World, int, float], list[float]]) -> Terms:
    return lambda w, i, a: [c * a * p for c, p in zip(weight(w, i, a), w.logp[i], strict=True)]


def of_ratio(f: Callable[[float], float]) -> Terms:
    return held(lambda w, i, a: [f(math.exp(x)) for x in w.logs(i)])


def product(w: World, i: int) -> float:
    return math.exp(sum(w.logs(i)))


def inside(value: float, lo: float, hi: float) -> float:
    return value if lo <= value <= hi else 0.0


def of_product(f: Callable[[float, float], float]) -> Terms:
    return held(lambda w, i, a: [f(product(w, i), a)] * w.length(i))


def kept(keep: Callable[[float, float, float], bool], top: float = INF) -> Terms:
    """DPPO: p and q of a token decide; keep(p, q, A)."""

    def terms(w: World, i: int, a: float) -> list[Tensor]:
        pairs = [(math.exp(p), math.exp(q)) for p, q in zip(w.held[i], w.logq[i], strict=True)]
        return [
            min(p / q, top) * keep(p, q, a) * a * logp for (p, q), logp in zip(pairs, w.logp[i], strict=True)
        ]

    return terms


def decoupled(prox: Callable[[World, int, int], float], highest: float = 5.0) -> Terms:
    def terms(w: World, i: int, a: float) -> list[Tensor]:
        anchors = [prox(w, i, t) for t in range(w.length(i))]
        behaviour = [math.exp(x - q) for x, q in zip(anchors, w.logq[i], strict=True)]
        return [
            inside(b, 0, highest) * ppo((p - x).exp(), a, 0.2, 0.2)
            for b, x, p in zip(behaviour, anchors, w.logp[i], strict=True)
        ]

    return terms


def second_moment(w: World, i: int, a: float) -> list[Tensor]:
    signs = {j: grpo(w, j) for j in w.mates(i)}
    harmful = sorted(x * x for j in w.mates(i) for x in w.logs(j) if signs[j] * x > 0)
    fits = [s for s in harmful if mean([min(h, s) for h in harmful]) <= 0.04]
    bound = math.sqrt(max(fits, default=0.0))
    return token(clip(max(1 - math.exp(-bound), 0.3), max(math.exp(bound) - 1, 0.5)))(w, i, a)


def geometric_mean(w: World, i: int, a: float) -> list[Tensor]:
    sign, whole = (1 if a > 0 else -1), torch.ones((), dtype=torch.float64)
    for p, q in zip(w.logp[i], w.logq[i], strict=True):
        r = (p - q).exp() ** sign
        whole = whole * torch.minimum(r, r.clamp(math.exp(-0.4), math.exp(0.4))) ** sign
    return [whole ** (1 / w.length(i)) * a]


def cumulative(w: World, i: int, a: float) -> list[Tensor]:
    terms, c = [], 0.0
    for t, x in enumerate(w.logs(i)):
        c += x
        root = math.sqrt(t + 1)
        rho = (c + w.logp[i][t] - w.held[i][t]).exp()
        bounded = rho.clamp(math.exp(-0.025 * root), math.exp(0.05 * root))
        term = torch.minimum(rho * a, bounded * a)
        terms.append(term if a >= 0 else term.clamp(min=math.exp(0.05 * root) * a))
    return terms


def traces(w: World, i: int, a: float) -> list[float]:
    rho = [min(1.0, math.exp(x)) for x in w.logs(i)]
    return [math.prod(rho[t:]) for t in range(len(rho))]


def tempered(w: World, i: int, a: float) -> list[float]:
    def at(tau: float, j: int) -> list[float]:
        return [math.exp(x + tau * (sum(w.logs(j)) - x)) for x in w.logs(j)]

    def effective(tau: float) -> float:
        means = [mean(at(tau, j)) for j in w.mates(i)]
        return sum(means) ** 2 / sum(m * m for m in means) / len(means)

    return [
        min(r, 2.0)
        for r in at(max([k / 16 for k in range(1, 17) if effective(k / 16) >= 0.5], default=0.0), i)
    ]


# --- the group's expectation --------------------------------------------------------------------------------


def gepo(
    over: str = "q", mix: float = 0.0, full: bool = False, f: Callable[[Tensor, float], Tensor] | None = None
) -> Terms:
    def probability(logs: list, n: int) -> Tensor:  # type: ignore[type-arg]
        return torch.as_tensor(sum(logs) / (1 if full else n), dtype=torch.float64).exp()

    def terms(w: World, i: int, a: float) -> list[Tensor]:
        q = {j: probability(w.logq[j], w.length(j)) for j in w.mates(i)}
        share = {j: q[j] / sum(q.values()) for j in q}
        p = {j: probability(w.held[j], w.length(j)) for j in w.mates(i)}
        expected = {
            "q": sum(share[j] * q[j] for j in q),
            "mean": sum(q.values()) / len(q),
            "p": sum(share[j] * p[j] for j in q),
        }
        weight = probability(w.logp[i], w.length(i)) / (mix * q[i] + (1 - mix) * expected[over])
        if f is not None:
            return [f(weight, a)]
        moved = math.exp(mean(w.logs(i)))
        return [weight * a * (not ((a > 0 and moved > 1.2) or (a < 0 and moved < 0.8)))]

    return terms


# --- reductions ---------------------------------------------------------------------------------------------


REDUCE: dict[str, Callable[[World, int, int], float]] = {
    # what one of the n terms of completion i counts
    "mean": lambda w, i, n: 1 / (len(w.all) * n),
    "sum": lambda w, i, n: 1 / len(w.all),
    "sequence x length": lambda w, i, n: w.length(i) / len(w.all),
    "tokens": lambda w, i, n: 1 / sum(w.length(j) for j in w.all),
    "live tokens": lambda w, i, n: 1 / max(sum(w.length(j) for j in w.all if live(w, j)), 1),
    "constant": lambda w, i, n: 1 / (len(w.all) * w.horizon),
    "1/length": lambda w, i, n: 1 / w.length(i) / sum(1 / w.length(j) for j in w.all) / w.horizon,
    "prompts": lambda w, i, n: 1 / (len(set(w.group)) * sum(w.length(j) for j in w.mates(i))),
}

# --- the table ----------------------------------------------------------------------------------------------


def disco(w: World) -> Tensor:
    """Its KL is the group's: the paper's is the batch's, which no micro-batch could know."""
    score = [sum(p, start=torch.zeros(())) / len(p) for p in w.logp]
    total = torch.zeros((), dtype=torch.float64)
    for g in sorted(set(w.group)):
        members = [i for i in w.all if w.group[i] == g]
        right, wrong = ([i for i in members if sign * centred(w, i) > 1e-12] for sign in (1, -1))
        if right and wrong:
            push = 10 * torch.stack([(score[j] / 10).exp() for j in wrong]).mean().log()
            total = total + sum(score[i] - push for i in right) / len(right) / len(set(w.group))
        drift = sum(mean(w.logq[i]) - score[i] for i in members) / len(members)
        total = total - 1e3 / 2 * (drift - 1e-4).clamp(min=0) ** 2 * len(members) / len(w.all)
    return total


plain, unit = (lambda r, a: r * a), of_ratio(lambda r: 1.0)
near, towards = clip(3e-4, 4e-4), (lambda p, q, a: p - q <= 0.15 if a > 0 else p - q >= -0.15)
capped = baseline(lambda w, j: min(product(w, j), 2.0))
LITERALS: dict[str, Callable[[World], Tensor]] = {
    "reinforce": of(raw, unit, "sum"),
    "rloo": of(others, unit, "sum"),
    "opo": of(baseline(lambda w, j: w.length(j)), unit, "sum"),
    "gpg": of(alive, unit, "tokens"),
    "disco": disco,
    "ppo_clip": of(whitened, token(clip()), "tokens"),
    "grpo": of(grpo, token(clip()), "mean"),
    "dr_grpo": of(centred, token(clip()), "constant"),
    "bnpo": of(grpo, token(clip()), "tokens"),
    "bnpo_beta": of(beta, token(clip(0.2, 0.28, 10.0)), "sum"),
    "dapo": of(grpo, token(clip(0.2, 0.28)), "live tokens"),
    "delta_l": of(grpo, token(clip(0.2, 0.3)), "1/length"),
    "sapo": of(grpo, token(soft), "mean"),
    "cispo": of(grpo, of_ratio(lambda r: min(r, 5.0)), "tokens"),
    "tis": of(grpo, of_ratio(lambda r: min(r, 2.0)), "tokens"),
    "aipo": of(centred, of_ratio(lambda r: min(r, 4.0)), "tokens"),
    "mis": of(grpo, of_ratio(lambda r: inside(r, 0, 3)), "tokens"),
    "icepop": of(grpo, of_ratio(lambda r: inside(r, 0.5, 5)), "tokens"),
    "decoupled": of(grpo, decoupled(lambda w, i, t: w.prox[i][t]), "tokens"),
    "a3po": of(grpo, decoupled(lambda w, i, t: w.logq[i][t] + (1 - 1 / w.lag[i]) * w.logs(i)[t]), "tokens"),
    "m2po": of(grpo, second_moment, "tokens"),
    "dppo": of(centred, kept(towards), "constant"),
    "prime_rl": of(centred, kept(lambda p, q, a: abs(p - q) <= 0.3), "live tokens"),
    "deepseek_v3": of(
        centred, lambda w, i, a: token(clip())(w, i, a * (a >= 0 or -mean(w.logs(i)) <= 0.5)), "mean"
    ),
    "mhpo": of(grpo, hazard, "mean"),
    "ctpo": of(grpo, cumulative, "mean"),
    "vtrace": of(centred, held(traces), "constant"),
    "gspo": of(grpo, sequence(near), "mean"),
    "luspo": of(grpo, sequence(clip(2e-3, 2.5e-3)), "sequence x length"),
    "gspo_token": of(
        grpo,
        lambda w, i, a: [
            ppo((p - h + mean(w.logs(i))).exp(), a, 3e-4, 4e-4)
            for p, h in zip(w.logp[i], w.held[i], strict=True)
        ],
        "mean",
    ),
    "gmpo": of(grpo, geometric_mean, "mean"),
    "seq_is": of(others, sequence(plain, full=True), "sum"),
    "seq_tis": of(centred, of_product(lambda p, a: min(p, 2.0)), "sum"),
    "seq_mis": of(centred, of_product(lambda p, a: inside(p, 0.5, 2)), "sum"),
    "snis": of(
        baseline(product),
        held(lambda w, i, a: [product(w, i) / mean([product(w, j) for j in w.mates(i)])] * w.length(i)),
        "sum",
    ),
    "topr": of(centred, of_product(lambda p, a: 1.0 if a >= 0 else min(p, 1.0)), "mean"),
    "vespo": of(
        grpo,
        of_product(lambda p, a: p**2 * math.exp(3 - 3 * p) if a >= 0 else p**3 * math.exp(2 - 2 * p)),
        "tokens",
    ),
    "gepo": of(centred, gepo(), "mean"),
    "gepo_noclip": of(centred, gepo(f=plain), "mean"),
    "gepo_paper": of(centred, gepo(f=clip()), "mean"),
    "gepo_full": of(centred, gepo(full=True), "sum"),
    "gepo_mix": of(centred, gepo(mix=0.5), "mean"),
    "gepo_mean": of(centred, gepo("mean"), "mean"),
    "gepo_eqp": of(centred, gepo("p"), "mean"),
    "seq_tis_wb": of(capped, of_product(lambda p, a: min(p, 2.0)), "sum"),
    "gepo_defensive": of(centred, gepo(mix=0.9, full=True, f=plain), "sum"),
    "tempered": of(centred, held(tempered), "sum"),
}

# What no method has by default.
VARIANTS: list[tuple[str, dict[str, float | str | bool], Callable[[World], Tensor]]] = [
    ("grpo", {"scale": "group-mean"}, of(over_mean, token(clip()), "mean")),
    ("grpo", {"reduce": "prompt-mean", "dual": 1.5}, of(grpo, token(clip(dual=1.5)), "prompts")),
    ("bnpo", {"against": "prox"}, of(grpo, decoupled(lambda w, i, t: w.prox[i][t], INF), "tokens")),
    (
        "tis",
        {"veto": "token", "edge": 0.7},
        of(
            grpo,
            held(
                lambda w, i, a: [min(math.exp(x), 2) * (min(w.logs(i)) >= math.log(0.7)) for x in w.logs(i)]
            ),
            "tokens",
        ),
    ),
    ("dppo", {"dual": 1.2}, of(centred, kept(towards, 1.2), "constant")),
    ("luspo", {"score": "full", "eps": 0.5}, of(grpo, sequence(clip(0.5, 0.5), full=True), "sum")),
    (
        "gepo_full",
        {"over": "p", "mix": 0.25, "trust": "free"},
        of(centred, gepo("p", 0.25, True, plain), "sum"),
    ),
]
