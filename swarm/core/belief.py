"""How far a learner believes the log-probabilities that a sampler claims.

x = log p - log q for each token: p the learner's, q as the sampler says. However far the two policies are
apart, an honest sampler drew its tokens from q, so the ratio p/q has expectation 1 under it: over a token,
over a completion, over a group, and over all groups of its life as a product. Markov's inequality then bounds
how far it exceeds 1: the probability of a ratio above exp(a) is at most exp(-a), at any staleness, learning
rate and model. Who claims a q that is too low, to make its completions count more, has ratios above 1 that do
not average out. So each group has `Odds` against its sampler's word, in nats:

    evidence = log of the mean of  p/q of the whole group          catches a claim too low everywhere,
                                   mean p/q of its completions     too low in some completions,
                                   mean p/q of its tokens          or in some tokens

A group whose evidence is beyond DOUBT teaches nothing, and evidence adds up over a sampler's groups (a CUSUM:
what speaks for it is not saved up): beyond SUSPICION its word is not taken for a while. Nothing bounds the
other side, since a policy that has moved on finds old text improbable: there `run.window.drift` is a band, as
it was measured (docs/trust.md).

Not handled here, and not found: lies within the odds, which move weight among a sampler's own completions and
cannot raise its mean; text that was chosen and not drawn; another temperature than is said.
"""

from __future__ import annotations

from collections import OrderedDict

from swarm.types import PeerId, Struct

SLACK = 0.01
"""Nats a token by which engines may claim too little without being doubted. Rounding has a mean of 2e-4 with
a sampler in bfloat16 or int8 (docs/trust.md); noise of 0.1 a token without a mean is worth half its square,
0.005."""

DOUBT = 14.0
"""Nats: an honest group is refused with a probability of at most exp(-14) = 8e-7."""

SUSPICION = 20.0
"""Nats, summed over a sampler's groups: an honest one is suspected with a probability of at most exp(-20) =
2e-9."""

AVERTED = 600.0
"""Seconds for which a suspected sampler's claims are not believed: a liar loses most of its time, and an
engine that was at fault may be mended."""

REMEMBERED = 4096
"""Samplers whose evidence is remembered."""


class Odds(Struct):
    """A group's log ratios."""

    drift: float
    """Mean of x over the group's tokens, nats."""
    evidence: float
    """Nats against the sampler's claim; -inf to inf."""


def objection(odds: Odds, drift: float) -> str | None:
    """Why a group must not teach, or None. `drift` is the most by which a group's mean may lie below 0, nats
    a token."""
    if odds.evidence > DOUBT:
        return (
            f"the log-probabilities it claims are too low, the learner's are {odds.drift:.3g} nats a token"
            f" higher: evidence of {odds.evidence:.3g} nats, an honest group has less than {DOUBT:g}"
        )
    if odds.drift < -drift:
        return (
            f"the learner's log-probabilities lie {-odds.drift:.3g} nats a token below those it claims, the"
            f" band is {drift:g}"
        )
    return None


class Credence:
    """The evidence of each sampler's groups so far."""

    def __init__(self) -> None:
        self._against: OrderedDict[PeerId, float] = OrderedDict()
        self._until: OrderedDict[PeerId, float] = OrderedDict()

    def weigh(self, sampler: PeerId, evidence: float, now: float) -> bool:
        """Count one group's evidence. True when the sampler's claims are not believed any more, for AVERTED
        seconds from `now`."""
        against = max(0.0, self._against.pop(sampler, 0.0) + evidence)
        if against > SUSPICION:
            _put(self._until, sampler, now + AVERTED)
            return True
        if against > 0.0:
            _put(self._against, sampler, against)
        return False

    def objection(self, sampler: PeerId, now: float) -> str | None:
        """Why the sampler's groups are refused now, or None."""
        left = self._until.get(sampler, now) - now
        return (
            f"its log-probabilities were not true: its groups are refused for another {left:.0f} s"
            if left > 0
            else None
        )


def _put(where: OrderedDict[PeerId, float], sampler: PeerId, value: float) -> None:
    where[sampler] = value
    where.move_to_end(sampler)
    if len(where) > REMEMBERED:
        where.popitem(last=False)
