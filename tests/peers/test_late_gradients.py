"""A gradient that is late for its own version counts in the next round."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from test_overlap import Steps, assert_all_groups_are_somewhere
from test_roles_swarm import EPOCH, Told, scenario, seconds

from swarm.config import ObjectiveSettings
from swarm.events import Averaged, Snapped, Trained
from swarm.sim.scenario import Fault, Scenario

BACK = 33.0


def returning(**run: Any) -> Scenario:
    """Gradients take 4 s, and a learner comes back while the two others compute theirs."""
    bounce = Fault(at=BACK - 13.0, fault="bounce", peer="learner-2", down=13.0)
    plain = scenario(1.2, (3, 12), bounce, **run)
    return msgspec.structs.replace(plain, prices=plain.prices | {"learn": seconds(4.0)})


def test_who_comes_back_in_the_middle_of_a_version_is_in_step_from_its_first_gradient_on(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    steps, told = Steps(monkeypatch), Told(returning(), disks=tmp_path)
    assert {version - computed for version, computed in steps.taken} == {0, 1}
    first = told.of(Trained, "learner-2", since=BACK)[0]
    assert first.members == 3 and first.metrics["lag_versions"] > 0
    rounds = [len(event.members) for event in told.of(Averaged, "learner-0", since=first.at - EPOCH)]
    assert rounds and set(rounds) == {3}
    assert_all_groups_are_somewhere(told)


def test_a_gradient_of_the_whole_rounds_rewards_does_not_wait_for_another_round(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    steps, told = Steps(monkeypatch), Told(returning(objective=ObjectiveSettings(name="ppo_clip")))
    assert {version - computed for version, computed in steps.taken} == {0}
    assert told.of(Trained, "learner-2", since=BACK) and not told.of(Snapped, "learner-0")
