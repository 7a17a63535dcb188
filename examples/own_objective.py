"""An objective of one's own: a completion counts less the further the policy has moved from its sampler.

    PYTHONPATH=examples swarm objectives own_objective:BELL
    PYTHONPATH=examples swarm up demo --set objective.name=own_objective:BELL
    PYTHONPATH=examples swarm bench gradient --quick --methods gepo,own_objective:BELL

    phi = w exp(-d^2 / (2 hi^2))    w: GEPO's weight; d: a completion's mean of log p - log q, nats a token

An objective is a value of five parts. This one takes four of them from the library and brings a trust region,
which is a function from what is known of a batch to the factor of each gradient. Learners of a run import the
module on their own machines; samplers never do.
"""

from torch import Tensor

from swarm.learn.objectives import Advantage, Objective, Ratio, TrustRegion
from swarm.learn.trust_region import TRUSTS, TrustRegionInput


def bell(it: TrustRegionInput) -> Tensor:
    """(B, T) or (B, 1): half a weight is lost where the policy has moved by about 1.2 `hi`."""
    return it.w * (-0.5 * (it.drift / it.trust.hi) ** 2).exp()


TRUSTS["bell"] = bell
BELL = Objective(
    "bell",
    Advantage("group-mean"),
    Ratio("group-expectation", score="geometric"),
    TrustRegion("bell", hi=0.5),
    "sequence-mean",
)
