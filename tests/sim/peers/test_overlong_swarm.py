"""A swarm whose run penalises long completions: learners train on less reward than claimed, and agree."""

from __future__ import annotations

import msgspec
import pytest

from lab.studies.liars import adversaries
from lab.studies.liars.adversaries import Attacked
from swarm.core.gradient_checks.recomputed import Rechecks
from swarm.events import Event, Rejected, Sampled, Trained
from swarm.protocol import Role
from swarm.settings.config import ObjectiveSettings
from swarm.sim.world import World
from swarm.types import PeerId


def test_learners_that_penalise_agree_and_samplers_claim_the_rewards_of_the_task(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told: list[Event] = []
    again: list[PeerId] = []
    found = Rechecks.found

    def compared(checks: Rechecks, peer: PeerId, *rest: object) -> str | None:
        again.append(peer)
        return found(checks, peer, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(Rechecks, "found", compared)
    one = Attacked(attack="honest", defended=True, seconds=8.0, learners=2)
    scenario = adversaries.scenario(one)
    penalty = ObjectiveSettings(name="reinforce", overlong="penalty")
    run = msgspec.structs.replace(scenario.run, objective=penalty)
    scenario = msgspec.structs.replace(
        scenario, run=run, peers={Role.SEED: 1, Role.LEARNER: 2, Role.SAMPLER: 6}
    )
    World(
        scenario, lambda peer: adversaries.spawn(peer, one, adversaries.Overheard(1)), sinks=[told.append]
    ).run()
    trained = [event.metrics["reward"] for event in told if isinstance(event, Trained)]
    sampled = [event.reward for event in told if isinstance(event, Sampled)]
    assert trained and max(trained) < -0.5  # each completion is as long as the limit: -1
    assert min(sampled) >= 0
    assert {*again} == {"learner-0", "learner-1"}
    assert not [event for event in told if isinstance(event, Rejected)]
