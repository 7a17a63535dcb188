"""A peer whose p2pd dies while it starts joins all the same, and does its work."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from places import SUPPORT
from swarm_processes import UNHURRIED, SwarmProcesses, admitted, started_swarm

from swarm import events

KILLING = str(SUPPORT / "killing_start.py")


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SwarmProcesses]:
    """A seed, a learner and a sampler, for a peer that comes."""
    with started_swarm(tmp_path_factory.mktemp("swarm")) as house:
        house.seed()
        learner = house.join("learner")
        house.join("sampler", *UNHURRIED)
        house.wait_until(lambda: learner.saw(events.Started), 120, "the learner did not start")
        yield house


@pytest.mark.parametrize("number", [1, 4, 8, 12])
@pytest.mark.parametrize("role", ["sampler", "learner"])
def test_a_peer_whose_p2pd_is_killed_while_it_starts_takes_part(
    house: SwarmProcesses, tmp_path: Path, role: str, number: int
) -> None:
    program = (sys.executable, KILLING, str(number))
    sets = [word for one in (UNHURRIED if role == "sampler" else ()) for word in ("--set", one)]
    words = [
        "join",
        "--word-file",
        str(house.folder / "invites" / role),
        "--as",
        role,
        "--folder",
        str(tmp_path),
    ]
    peer = house.run(f"{role}-{number}", *words, *sets, folder=tmp_path, program=program)
    house.wait_until(lambda: peer.saw(events.Started), 120, "it did not start")
    (learner, *_) = [one for one in house.programs if one.name == "learner"]
    if role == "sampler":
        house.wait_until(lambda: admitted(learner, peer.peer), 120, "no group of it was admitted")
    else:
        house.wait_until(lambda: peer.saw(events.Trained), 120, "it trained nothing")
    assert peer.saw(events.Recovered, part="p2pd"), peer.tail()
    peer.signal(2)
    house.wait_until(lambda: peer.process.poll() is not None, 60, "it did not leave")
