"""Whether a learner trusts the log-probabilities that a sampler claims: evidence by group and by sampler.

x = log p - log q for each token: p the learner's probability, q the claimed one. However far the two policies
are apart, an honest sampler drew its tokens from q, so the ratio p/q has expectation 1 under it: over a
token, over a completion, over a group, and over all groups of its life as a product. Markov's inequality then
bounds how far it exceeds 1: the probability of a ratio above exp(a) is at most exp(-a), at any staleness,
learning rate and model. A sampler that claims a q that is too low, to make its completions count more, has
ratios above 1 that do not average out. So each group has evidence against its sampler's claim, in nats:

    evidence = log of the mean of  p/q of the whole group          catches a claim too low everywhere,
                                   mean p/q of its completions     too low in some completions,
                                   mean p/q of its tokens          or in some tokens

A group whose evidence exceeds GROUP_EVIDENCE_LIMIT is not trained on. Evidence adds up over a sampler's
groups (a CUSUM that never falls below 0: evidence in its favour is not saved up); beyond SUSPECT all of them
are audited first, beyond SAMPLER_EVIDENCE_LIMIT it is suspended (peers.audits.auditor). Nothing bounds the
other side, since a policy that has moved on finds old text improbable: there `run.window.drift` is a band,
set by measurement (docs/trust.md).

    swarm.learn.learners.claim_checks -> ClaimCheck of a group -> objection, SamplerEvidence -> verdict

Not handled here, and not found: false claims that keep the mean ratio at 1, which move weight among a
sampler's own completions and cannot raise its mean; text that was chosen and not sampled; another temperature
than the run's."""

from __future__ import annotations

from collections import OrderedDict

from swarm.limits import remember
from swarm.types import PeerId, Struct

SLACK = 0.01
"""Nats a token by which an engine may claim too little without adding evidence. Rounding has a mean of 2e-4
with a sampler in bfloat16 or int8 (docs/trust.md); zero-mean noise of 0.1 a token adds half its square,
0.005."""

GROUP_EVIDENCE_LIMIT = 14.0
"""Nats: an honest group is refused with a probability of at most exp(-14) = 8e-7."""

SAMPLER_EVIDENCE_LIMIT = 20.0
"""Nats, summed over a sampler's groups: an honest sampler is refused with a probability of at most exp(-20) =
2e-9."""

UNTRUE = "its log-probabilities are too low, by the learner's own"
"""Why it is suspended then."""

SUSPECT = 5.0
"""Nats, summed over a sampler's groups: an honest one that reaches it, by a chance of exp(-5), loses nothing
by it."""

REMEMBERED = 4096
"""Samplers whose evidence is remembered."""


class ClaimCheck(Struct):
    """How a group's claimed log-probabilities compare with the learner's."""

    drift: float
    """Mean of x over the group's tokens, nats."""
    evidence: float
    """Nats against the sampler's claim; -inf to inf, above 0 where the claim is improbable."""


NOT_COMPARED = ClaimCheck(drift=0.0, evidence=0.0)
"""Of a group that teaches nothing: it does not go through the learner's model, and its claims change no
gradient."""


def objection(check: ClaimCheck, drift: float) -> str | None:
    """Why a group must not be trained on, or None. `drift`: nats a token by which the mean of x may lie below
    0 (run.window.drift)."""
    if check.evidence > GROUP_EVIDENCE_LIMIT:
        return (
            f"the log-probabilities it claims are too low, the learner's are {check.drift:.3g} nats a token"
            f" higher: evidence of {check.evidence:.3g} nats, an honest group has less than"
            f" {GROUP_EVIDENCE_LIMIT:g}"
        )
    if check.drift < -drift:
        return (
            f"the learner's log-probabilities lie {-check.drift:.3g} nats a token below those it claims, the"
            f" band is {drift:g}"
        )
    return None


class SamplerEvidence:
    """The evidence that each sampler's groups add up to: a CUSUM in nats, reset when it reaches the limit."""

    def __init__(self) -> None:
        self._against: OrderedDict[PeerId, float] = OrderedDict()

    def add(self, sampler: PeerId, evidence: float) -> bool:
        """Add one group's evidence, in nats. True when the sum exceeds the limit: its sampler is to be
        suspended."""
        against = self._against.pop(sampler, 0.0) + evidence
        if against > SAMPLER_EVIDENCE_LIMIT:
            return True
        if against > 0.0:
            remember(self._against, sampler, against, REMEMBERED)
        return False

    def suspects(self, sampler: PeerId) -> bool:
        """Whether its groups are audited before those of others."""
        return self._against.get(sampler, 0.0) > SUSPECT
