"""A run folder that has trained and was judged."""

from __future__ import annotations

from swarm import events as happened
from swarm.types import PeerId

SEED, *LEARNERS = map(PeerId, ("seed", "learner-0", "learner-1"))


def trained(version: int, learner: int = 0, groups: int = 16, **metrics: float) -> happened.Trained:
    return happened.Trained(
        at=1e9 + version,
        peer=LEARNERS[learner],
        version=version,
        groups=groups,
        members=2,
        metrics=metrics,
        gather=0.5,
        learn=float(learner),
        average=0.25,
        step=0.125,
    )


def judged(version: int, accuracy: float) -> happened.Evaluated:
    return happened.Evaluated(at=1e9, peer=SEED, version=version, accuracy=accuracy, tasks=64)
