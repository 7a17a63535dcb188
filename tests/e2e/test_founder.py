"""The machine that began a run is gone for good: those who are left come back, go on and let others in."""

import shutil
from pathlib import Path

import pytest
from swarm_processes import UNHURRIED, Program, SwarmProcesses, started_swarm, version

from swarm import events

pytestmark = pytest.mark.timeout(180)


def trains(house: SwarmProcesses, learner: Program, above: int = 0) -> int:
    """Wait until it trained a version above this one. -> which"""
    found = house.wait_until(
        lambda: [event.version for event in learner.saw(events.Trained) if event.version > above],
        60,
        f"no version above {above} was trained",
    )
    return max(found)


def begun(house: SwarmProcesses, home: Path) -> tuple[Program, Program, dict[str, str]]:
    """A learner and a sampler, each in a folder of its own, that trained some versions, and whose founder is
    gone. -> both, and the words of its invites"""
    seed = house.seed()
    words = {role: house.invite(role) for role in ("learner", "sampler")}
    learner = house.join("learner", folder=home / "learner")
    sampler = house.join("sampler", *UNHURRIED, folder=home / "sampler")
    trains(house, learner, above=2)
    contacts = home / "sampler" / "peers" / "sampler-1" / "contacts"
    house.wait_until(
        lambda: contacts.exists() and learner.peer.encode() in contacts.read_bytes(),
        20,
        "the sampler did not write down where the learner is",
    )
    seed.kill()
    shutil.rmtree(house.folder)
    return learner, sampler, words


def again(house: SwarmProcesses, role: str, word: str, folder: Path, *more: str) -> Program:
    sets = [part for one in UNHURRIED for part in ("--set", one)] if role == "sampler" else []
    return house.run(role, "join", word, "--as", role, "--folder", str(folder), *sets, *more, folder=folder)


def test_a_learner_that_comes_back_without_the_founder_goes_on_with_the_sampler_that_lives(
    tmp_path: Path,
) -> None:
    with started_swarm(tmp_path) as house:
        learner, _, words = begun(house, tmp_path)
        learner.kill()
        before = version(learner)
        learner = again(house, "learner", words["learner"], tmp_path / "learner")
        trains(house, learner, above=before)
        assert learner.saw(events.Recovered, part="network"), "the sampler dialled it, or it the sampler"
