"""Ctrl-C while a peer begins, and when a part of it hangs: it ends with 130, soon, and says nothing odd."""

from __future__ import annotations

import signal
from pathlib import Path

import psutil
import pytest
from swarm_processes import Program, SwarmProcesses, started_swarm

from swarm import events

ODD = ("Traceback", "Event loop", "Loop <", "bug in swarm")


def has_p2pd(program: Program) -> bool:
    """Its p2pd has just been forked: it connects with nobody yet."""
    try:
        return any("p2pd" in " ".join(child.cmdline()) for child in program.tree()[1:])
    except psutil.NoSuchProcess:  # another child has just ended: look again
        return False


def interrupted(house: SwarmProcesses, program: Program) -> None:
    left = program.tree()[1:]
    program.signal(signal.SIGINT)
    house.wait_until(lambda: program.process.poll() is not None, 60, "it did not end")
    said = program.log.read_text()
    assert program.process.returncode == 130 and not [word for word in ODD if word in said], said
    house.wait_until(lambda: not psutil.wait_procs(left, timeout=0)[1], 20, "a child of it is left")


@pytest.mark.parametrize("command", ["start", "up", "join"])
def test_who_is_interrupted_while_p2pd_begins_ends_with_130_and_says_nothing_odd(
    tmp_path: Path, command: str
) -> None:
    with started_swarm(tmp_path) as house:
        if command == "join":
            house.seed()
            begins = house.join("sampler", folder=tmp_path / "joiner")
        else:
            begins = house.run(command, command, str(house.config), "--folder", str(house.folder))
        house.wait_until(lambda: has_p2pd(begins), 120, "it has no p2pd")
        interrupted(house, begins)


def test_a_peer_whose_p2pd_is_frozen_leaves_all_the_same(tmp_path: Path) -> None:
    with started_swarm(tmp_path) as house:
        house.seed()
        sampler = house.join("sampler", folder=tmp_path / "sampler")
        house.wait_until(lambda: sampler.saw(events.Adopted), 120, "it has no policy")
        (p2pd,) = [child for child in sampler.tree() if child.name() == "p2pd"]
        p2pd.suspend()
        interrupted(house, sampler)
