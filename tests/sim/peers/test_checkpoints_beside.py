"""A checkpoint is written while the learner's next gradient is computed, and before its state changes."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any, Literal

import msgspec
import pytest
from role_swarms import Told, scenario, seconds

from peers.learner.checkpoints import Checkpoints
from swarm.events import Left, Released, Saved, Trained
from swarm.learn.files import checkpoint
from swarm.learn.learners.learner import Learner
from swarm.learn.learners.site_learner import SiteLearner
from swarm.learn.models.tabular import Tabular
from swarm.settings.config import Averaging, Releasing, Stop
from swarm.sim.scenario import Fault, Scenario

LEARN = 2.0


def lone(save: float, every: int = 1, **run: Any) -> Scenario:
    """A learner with groups enough, that saves each version, or some, in so many seconds."""
    plain = scenario(0.5, (1, 6), release=Releasing(checkpoint_every=every), **run)
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


def test_a_learner_ends_when_its_last_checkpoint_is_written(tmp_path: Path) -> None:
    told = Told(lone(1.5 * LEARN, every=3, stop=Stop(versions=4)), tmp_path)
    assert [event.version for event in told.of(Saved)] == [3, 4]
    assert told.of(Left, "learner-0")[0].at >= told.of(Saved)[-1].at


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


@pytest.mark.parametrize("mode", ["butterfly", "sites"])
def test_no_state_changes_while_it_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: Literal["butterfly", "sites"]
) -> None:
    """Learners step, are cut off, and take releases and states; checkpoints take four seconds."""
    writing, changed = set[int](), Counter[str]()
    write = Checkpoints._write

    async def writes(checkpoints: Checkpoints, *begun: Any) -> None:
        writing.add(id(checkpoints._learner))
        await write(checkpoints, *begun)
        writing.discard(id(checkpoints._learner))

    def watch(kind: type[Learner], name: str) -> None:
        change = getattr(kind, name)

        def changes(learner: Learner, *args: Any) -> Any:
            assert id(learner) not in writing, name
            changed[name] += 1
            return change(learner, *args)

        monkeypatch.setattr(kind, name, changes)

    monkeypatch.setattr(Checkpoints, "_write", writes)
    for name in ("step", "load", "load_state"):
        watch(Learner, name)
    for name in ("load", "step_locally", "outer_step", "undo_steps"):
        watch(SiteLearner, name)
    sides = ("learner-1",), ("learner-[02]", "s*")
    faults = Fault(at=12, fault="partition", between=sides), Fault(at=32, fault="repair", between=sides)
    averaging = Averaging(match=2.0, deadline=6.0, chunk=3.0, mode=mode, local_steps=3)
    releasing = Releasing(checkpoint_every=1)
    plain = scenario(0.9, (3, 6), *faults, averaging=averaging, release=releasing)
    told = Told(msgspec.structs.replace(plain, prices=plain.prices | {"save": seconds(4.0)}), tmp_path)
    assert len(told.of(Saved)) > 10
    own = {"butterfly": {"step"}, "sites": {"step_locally", "outer_step"}}
    assert changed.keys() >= {"load", "load_state"} | own[mode]
