"""One identity in two places, or in none, on real processes: a run folder was copied, moved or removed."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path

import pytest
from swarm_processes import UNHURRIED, started_swarm

from peers.errors import CANNOT, REFUSED
from swarm import events


def test_of_a_peer_and_its_copy_the_later_one_goes_on_and_the_other_says_why_it_stops(tmp_path: Path) -> None:
    with started_swarm(tmp_path) as house:
        seed = house.seed()
        first = house.join("sampler", *UNHURRIED, folder=tmp_path / "first")
        house.wait_until(
            lambda: first.saw(events.Started) and seed.saw(events.Heard, subject=first.peer),
            120,
            "the first one was not heard",
        )
        shutil.copytree(tmp_path / "first", tmp_path / "copy")
        copy = house.join("sampler", *UNHURRIED, folder=tmp_path / "copy")
        house.wait_until(lambda: first.process.poll() is not None, 150, "the older one went on")
        assert first.process.returncode == REFUSED
        assert "has this peer's key and was started later" in first.tail()
        since = time.time()
        house.wait_until(
            lambda: seed.saw(events.Heard, since, subject=copy.peer), 60, "the newer one is not heard"
        )
        assert copy.peer == first.peer and copy.process.poll() is None
        assert "where this peer listened before, is another program's now" in copy.log.read_text()


@pytest.mark.parametrize("moved", [True, False], ids=["moved", "removed"])
def test_a_peer_whose_run_folder_is_moved_or_removed_ends_with_what_to_do(
    tmp_path: Path, moved: bool
) -> None:
    with started_swarm(tmp_path) as house:
        seed = house.seed()
        peers = [house.join(role, *UNHURRIED, folder=tmp_path / role) for role in ("learner", "sampler")]
        house.wait_until(
            lambda: any(e.release.version > 1 for e in peers[0].saw(events.Released)), 180, "nobody trains"
        )
        for program, folder in (
            (peers[1], tmp_path / "sampler"),
            (peers[0], tmp_path / "learner"),
            (seed, house.folder),
        ):
            os.rename(folder, tmp_path / f"{folder.name}-elsewhere")
            if not moved:
                shutil.rmtree(tmp_path / f"{folder.name}-elsewhere")
            house.wait_until(lambda: program.process.poll() is not None, 30, "it went on without its folder")  # noqa: B023
            said = " ".join(program.log.read_text().split())
            assert program.process.returncode == CANNOT, said
            assert "was moved or removed while its peer ran" in said and "Traceback" not in said
