"""One identity in two places, on real processes: somebody copied a run folder."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

import pytest
from swarm_processes import UNHURRIED, started_swarm

from peers.errors import REFUSED
from swarm import events


@pytest.mark.slow
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
