"""What the tests of the nemesis share."""

from __future__ import annotations

from lab.studies.nemesis import Trial, shortest
from swarm.sim import nemesis
from swarm.sim.nemesis import NemesisPlan
from swarm.sim.scenario import Fault


def failed(trial: Trial) -> str:
    """What to read, and to keep as a test, when a trial failed."""
    return f"{trial.failures}\n{nemesis.text(shortest(trial))}" if trial.failures else ""


FULL_AND_KILLED = tuple(
    NemesisPlan(
        seed=seed,
        peers={"seed": 1, "learner": learners, "sampler": 2},
        faults=(
            Fault(at=12.0, fault="full", peer="learner-0", seconds=seconds),
            Fault(at=killed, fault="bounce", peer="learner-0", down=2.0),
        ),
    )
    for learners, seed in ((1, 0), (1, 1), (2, 0), (2, 3))
    for seconds, killed in ((2.0, 20.0), (10.0, 18.0))
)
"""A learner's disk is full and has room again before it dies, or not: what it refused is on it, or with the
samplers and the seed."""
