"""`swarm up` from the first word to the exported model, and what becomes of its processes when it or one of
them is killed. test_observer.py ends its swarm by Ctrl-C."""

import os
import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from swarm_processes import SETTINGS, UP, Program, SwarmProcesses, alive, started_swarm

from peers.errors import CannotHere
from swarm import events


@pytest.fixture
def endless(tmp_path: Path) -> Iterator[tuple[SwarmProcesses, Program]]:
    """A swarm of `swarm up` that trains and has no end."""
    with started_swarm(tmp_path, SETTINGS + UP.format(learners=1, evaluators=0, versions=0)) as house:
        program = house.up()
        house.wait_until(
            lambda: any(e.release.version > 0 for e in house.told("seed", events.Released)),
            180,
            "the swarm did not train",
        )
        yield house, program


def test_a_killed_child_is_started_again(endless: tuple[SwarmProcesses, Program]) -> None:
    house, _ = endless
    peer_folder = house.folder / "peers" / "sampler-1"
    pid = int((peer_folder / "pid").read_text())
    os.kill(pid, signal.SIGKILL)
    house.wait_until(
        lambda: (peer_folder / "pid").read_text() not in ("", str(pid)),
        20,
        "the sampler was not started again",
    )
    since = time.time()
    house.wait_until(
        lambda: any(e.at > since for e in house.told("sampler-1", events.Sampled)),
        40,
        "the new sampler did not sample",
    )
    assert "sampler-1 died (signal SIGKILL) and is started again" in house.programs[0].log.read_text()


def test_nothing_is_left_when_it_is_killed(endless: tuple[SwarmProcesses, Program]) -> None:
    house, program = endless
    everybody = program.tree()
    assert len(everybody) > 8
    program.kill()
    house.wait_until(lambda: not alive(everybody), 15, f"left: {alive(everybody)}")


@pytest.mark.parametrize("moved", [True, False], ids=["moved", "removed"])
def test_a_folder_that_is_moved_or_removed_ends_the_swarm_with_what_to_do(
    moved: bool, endless: tuple[SwarmProcesses, Program], tmp_path: Path
) -> None:
    house, program = endless
    everybody = program.tree()
    house.folder.rename(tmp_path / "elsewhere")
    if not moved:
        shutil.rmtree(tmp_path / "elsewhere")
    house.wait_until(lambda: program.process.poll() is not None, 30, "it went on without its folder")
    assert program.process.returncode == CannotHere.code
    said = " ".join(program.log.read_text().split())
    assert "was moved or removed while its swarm ran" in said and "is started again" not in said
    house.wait_until(lambda: not alive(everybody), 15, f"left: {alive(everybody)}")
