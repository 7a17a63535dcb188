"""A scenario of learners of unequal speed."""

from __future__ import annotations

import msgspec
from role_swarms import scenario, seconds

from swarm.settings.config import BatchSize
from swarm.sim.scenario import Scenario


def unequal(learners: int, slower: float, minutes: float = 1.5) -> Scenario:
    """Groups enough, each of which takes 0.5 s to learn on; the last learner takes longer."""
    plain = scenario(minutes, (learners, 8), batch=BatchSize(groups=12, close_after=3.0))
    last = {f"learner-{learners - 1}": slower}
    return msgspec.structs.replace(
        plain, prices=plain.prices | {"learn": seconds(0.5)}, each=("learn",), slower=last
    )
