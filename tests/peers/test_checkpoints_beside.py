"""A checkpoint is written while the learner's next gradient is computed, and before its state changes."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from test_roles_swarm import Told, scenario, seconds

from swarm.config import Releasing
from swarm.events import Released, Saved, Trained
from swarm.learn import checkpoint
from swarm.learn.learner import Learner
from swarm.learn.tabular import Tabular
from swarm.sim.scenario import Scenario

LEARN = 2.0


def lone(save: float) -> Scenario:
    """A learner with groups enough, that saves each version in so many seconds."""
    plain = scenario(0.5, (1, 6), release=Releasing(checkpoint_every=1))
    return msgspec.structs.replace(
        plain, prices=plain.prices | {"learn": seconds(LEARN), "save": seconds(save)}
    )


def steps(told: Told) -> list[float]:
    return [event.at for event in told.of(Trained)]


def test_a_learner_does_not_wait_for_its_checkpoint(tmp_path: Path) -> None:
    disks = [tmp_path / name for name in ("quick", "slow")]
    for folder in disks:
        folder.mkdir()
    quick, slow = (Told(lone(save), folder) for save, folder in zip((0.0, 0.9 * LEARN), disks, strict=True))
    assert len(steps(slow)) >= len(steps(quick)) - 1 > 10


def test_the_next_step_does(tmp_path: Path) -> None:
    told = Told(lone(3 * LEARN), tmp_path)
    saved = {event.version: event.at for event in told.of(Saved)}
    stepped = {event.version: event.at for event in told.of(Trained)}
    assert len(stepped) > 3
    assert all(at >= saved[version - 1] for version, at in stepped.items() if version - 1 in stepped)


@pytest.mark.parametrize("beside", [True, False])
def test_each_version_is_saved_as_it_was_stepped_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, beside: bool
) -> None:
    """Also by a learner that has to be asked between its gradients."""
    monkeypatch.setattr(Learner, "saves_beside", beside)
    told, found = Told(lone(0.5 * LEARN), tmp_path), list[Path](tmp_path.rglob(checkpoint.NAME))
    saved = [event.version for event in told.of(Saved)]
    assert saved == [*range(1, len(saved) + 1)] and len(saved) >= len(told.of(Trained)) - 1
    released = {event.release.version: event.release.weights for event in told.of(Released)}
    learner = Learner(Tabular(), lone(0.0).run)
    learner.restore(found[0].parent)
    assert learner.version == saved[-1] and learner.digest() == released[saved[-1]]
