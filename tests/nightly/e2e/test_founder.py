"""The machine that began a run is gone for good: those who are left come back, go on and let others in."""

import shutil
from pathlib import Path

from swarm_processes import UNHURRIED, Program, SwarmProcesses, admitted, started_swarm, swarm, version

from swarm import events
from swarm.membership import invite


def trains(house: SwarmProcesses, learner: Program, above: int = 0) -> int:
    """Wait until it trained a version above this one. -> which"""
    found = house.wait_until(
        lambda: [event.version for event in learner.saw(events.Trained) if event.version > above],
        120,
        f"no version above {above} was trained",
    )
    return max(found)


def begun(house: SwarmProcesses, home: Path) -> tuple[Program, Program, dict[str, str]]:
    """A learner and a sampler, each in a folder of its own, that trained some versions, and whose founder is
    gone. -> both, and the words of its invites"""
    seed = house.seed()
    words = {role: house.invite(role) for role in ("learner", "sampler", "seed")}
    learner = house.join("learner", folder=home / "learner")
    sampler = house.join("sampler", *UNHURRIED, folder=home / "sampler")
    trains(house, learner, above=2)
    contacts = home / "sampler" / "peers" / "sampler-1" / "contacts"
    house.wait_until(
        lambda: contacts.exists() and learner.peer.encode() in contacts.read_bytes(),
        60,
        "the sampler did not write down where the learner is",
    )
    seed.kill()
    shutil.rmtree(house.folder)
    return learner, sampler, words


def joins(house: SwarmProcesses, role: str, word: str, folder: Path) -> Program:
    sets = [part for one in UNHURRIED for part in ("--set", one)] if role == "sampler" else []
    return house.run(role, "join", word, "--as", role, "--folder", str(folder), *sets, folder=folder)


def word_of(folder: Path, role: str) -> str:
    made = swarm("invite", "--role", role, "--folder", str(folder))
    assert made.returncode == 0, made.stderr
    return made.stdout.strip()


def test_without_the_founder_a_learner_comes_back_and_lets_others_in(tmp_path: Path) -> None:
    with started_swarm(tmp_path) as house:
        learner, sampler, words = begun(house, tmp_path)
        learner.kill()
        before = version(learner)
        learner = joins(house, "learner", words["learner"], tmp_path / "learner")
        before = trains(house, learner, above=before)
        assert learner.saw(events.Recovered, part="network"), "the sampler dialled it, or it the sampler"

        newcomer = joins(house, "sampler", word_of(tmp_path / "learner", "sampler"), tmp_path / "newcomer")
        house.wait_until(lambda: newcomer.saw(events.Started), 120, "the newcomer did not come in")
        sampler.kill()
        house.wait_until(lambda: admitted(learner, newcomer.peer), 120, "its groups were not admitted")
        word = word_of(tmp_path / "learner", "learner")
        assert invite.read(word, 0.0).delegate == invite.read(words["learner"], 0.0).delegate


def test_everybody_died_and_a_folder_that_was_invited_to_be_a_seeds_brings_the_run_back(
    tmp_path: Path,
) -> None:
    with started_swarm(tmp_path) as house:
        learner, sampler, words = begun(house, tmp_path)
        before, home = version(learner), tmp_path / "sampler"
        learner.kill()
        sampler.kill()

        refused = swarm("start", "--adopt", str(home))
        assert refused.returncode == 5 and "may not be a seed's" in refused.stderr
        kept = swarm("invite", "--renew", words["seed"], "--folder", str(home))
        assert kept.returncode == 0 and "kept" in kept.stderr
        seed = house.run("seed", "start", "--adopt", str(home), "--set", "peer.page.port=0", folder=home)
        house.wait_until(lambda: "to join as a sampler" in seed.tail(), 120, "no seed in that folder")

        newcomer = joins(house, "sampler", word_of(home, "sampler"), tmp_path / "newcomer")
        learner = joins(house, "learner", words["learner"], tmp_path / "learner")
        house.wait_until(
            lambda: [event for event in newcomer.saw(events.Sampled) if event.version >= before - 1],
            120,
            "the newcomer did not get the last policy",
        )
        trains(house, learner, above=before)
