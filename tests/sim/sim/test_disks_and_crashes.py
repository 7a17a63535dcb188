"""Folders that outlive simulated peers, damage to their files, and ends at the steps of a publication."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest
from places import ROOT

from peers.commands import sim
from swarm.events import Event, Saved, Started, Trained
from swarm.sim import nemesis
from swarm.sim.disks import SimulatedDisks, damage, temporary
from swarm.sim.nemesis import NemesisPlan
from swarm.sim.scenario import STEPS, Fault
from swarm.sim.world import World
from swarm.storage.durable import write_durably

EPOCH = 1_750_000_000.0
SCENARIOS = ROOT / "configs" / "scenarios"


def played(plan: NemesisPlan, disks: Path | None = None) -> list[Event]:
    told: list[Event] = []
    World(nemesis.scenario(plan), sim.spawn, sinks=[told.append], disks=disks).run()
    return told


def test_a_learner_that_comes_back_goes_on_from_the_checkpoint_in_its_folder(tmp_path: Path) -> None:
    """Nobody else has a release any more."""
    alone = Fault(at=14.0, fault="crash", peer="seed-0"), Fault(at=14.0, fault="crash", peer="sampler-0")
    away = Fault(at=15.0, fault="bounce", peer="learner-0", down=5.0)
    newcomer = Fault(at=22.0, fault="host", peer="sampler-1")
    told = played(NemesisPlan(1, {"seed": 1, "learner": 1, "sampler": 2}, (*alone, away, newcomer)), tmp_path)
    saved = max(event.version for event in told if isinstance(event, Saved) and event.at < EPOCH + 15)
    later = [event.version for event in told if isinstance(event, Trained) and event.at > EPOCH + 20]
    assert later[0] > saved > 0 and len(later) > 5


@pytest.mark.parametrize("step", STEPS)
def test_a_publisher_ends_at_each_step_and_the_swarm_goes_on(step: str, tmp_path: Path) -> None:
    faults = (Fault(at=10.0, fault="bounce", peer="learner-0", down=3.0, step=step),)
    told = played(NemesisPlan(1, {"seed": 1, "learner": 1, "sampler": 1}, faults), tmp_path)
    lives = [event.at - EPOCH for event in told if isinstance(event, Started) and event.peer == "learner-0"]
    assert len(lives) == 2 and 13.0 < lives[1] < 28.0
    assert [event for event in told if isinstance(event, Trained) and event.at > EPOCH + 45]


def test_a_disk_that_is_full_refuses_its_own_folder_and_what_is_there_can_be_read(tmp_path: Path) -> None:
    disks, here = SimulatedDisks(), tmp_path / "learner-0"
    write_durably(here / "newest", b"old")
    with disks.in_use():
        disks.fill(here, True)
        for name in ("newest", "other"):
            with pytest.raises(OSError, match="No space left"):
                write_durably(here / name, b"new")
        write_durably(tmp_path / "learner-1" / "newest", b"new")
        disks.fill(here, False)
        write_durably(here / "other", b"new")
    assert [path.read_bytes() for path in sorted(tmp_path.glob("*/*"))] == [b"old", b"new", b"new"]


def test_temporary_disks_have_one_path_each_time_can_be_full_and_are_gone_afterwards() -> None:
    places: list[tuple[Path, Path]] = []
    for _ in range(2):
        with temporary() as folder, (disks := SimulatedDisks()).in_use():
            places.append((folder, folder.resolve()))
            write_durably(folder / "learner-0" / "newest", b"old")
            disks.fill(folder / "learner-0", True)
            for name in ("newest", "other"):
                with pytest.raises(OSError, match="No space left"):
                    write_durably(folder / "learner-0" / name, b"new")
            assert (folder / "learner-0" / "newest").read_bytes() == b"old"
            with open(folder / "learner-0" / "newest", "rb+", 0) as file:
                with pytest.raises(OSError, match="No space left"):
                    os.write(file.fileno(), b"new")
    (first, before), (second, after) = places
    assert first == second and not before.exists() and not after.exists()


def test_a_scenario_is_simulated_with_its_full_disks_and_its_damage_and_alike_each_time(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    quick = (SCENARIOS / "quick.toml").read_text().replace("hours = 0.5", "hours = 0.01")
    fault = '[[faults]]\npeer = "learner-0"\nat = '
    full = fault + '5.0\nfault = "full"\nseconds = 8.0\n' + fault + '20.0\nfault = "bounce"\ndown = 3.0\n'
    harm = fault + '21.0\nfault = "damage"\nfile = "**/*"\nhow = "empty"\n'
    found: list[list[str]] = []
    for k, faults in enumerate(("", full, full, full + harm)):
        (tmp_path / "one.toml").write_text(f"{quick}\n{faults}")
        assert sim.simulate(tmp_path / "one.toml", None, tmp_path / f"{k}") == 0
        found.append(Path(tmp_path / f"{k}").read_text().splitlines())
    whole, once, again, damaged = found
    assert once == again != whole
    assert not [line for line in whole if "No space left" in line]
    assert [line for line in once if "No space left" in line]
    assert damaged != once


def test_nothing_is_forced_to_the_disk_while_a_world_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    forced: list[int] = []
    monkeypatch.setattr(os, "fsync", forced.append)
    with SimulatedDisks().in_use():
        write_durably(tmp_path / "one", b"old")
    assert not forced and (tmp_path / "one").read_bytes() == b"old"
    write_durably(tmp_path / "one", b"new")
    assert forced


@pytest.mark.parametrize(
    ("how", "left"), [("cut", range(1000)), ("empty", [0]), ("flip", [1000]), ("delete", [])]
)
def test_damage_does_what_its_name_says(how: str, left: list[int], tmp_path: Path) -> None:
    (tmp_path / "blobs").mkdir()
    (tmp_path / "blobs" / "one").write_bytes(bytes(1000))
    (tmp_path / "key").write_bytes(b"stays")
    damage(tmp_path, "blobs/*", how, random.Random(1))
    found = [path.read_bytes() for path in tmp_path.glob("blobs/*")]
    assert all(len(data) in left and (how != "flip" or data != bytes(1000)) for data in found)
    assert bool(found) == (how != "delete") and (tmp_path / "key").read_bytes() == b"stays"
    damage(tmp_path, "checkpoint/*", how, random.Random(1))
