"""Delay laws: how long something takes, drawn from a named distribution.

In come a `DelayLaw` and a random generator, out come seconds in [0, law.longest]. Injected delays of real
peers, prices of work and latencies of simulated links all draw here, so that a law means the same in an
experiment and in a simulation.
"""

from __future__ import annotations

import math
from random import Random

from swarm.settings.config import DelayLaw


def draw(law: DelayLaw, rng: Random) -> float:
    """A delay in seconds. `lognormal` has median `seconds` and log-sigma `shape` (the paper's law, arXiv
    2508.17850: 339 s and 0.617); `weibull` has scale `seconds` and shape `shape`; `exponential` has mean
    `seconds`. Values above `longest` become `longest`.

    Raises ValueError on an unknown law.
    """
    match law.law:
        case "none":
            return 0.0
        case "constant":
            seconds = law.seconds
        case "lognormal":
            seconds = law.seconds * math.exp(law.shape * rng.gauss(0.0, 1.0))
        case "weibull":
            seconds = rng.weibullvariate(law.seconds, law.shape)
        case "exponential":
            seconds = rng.weibullvariate(law.seconds, 1.0)  # the same law; `expovariate` takes no mean of 0
        case _:
            raise ValueError(
                f"unknown delay law {law.law!r}: use none, constant, lognormal, weibull or exponential"
            )
    return min(max(seconds, 0.0), law.longest)
