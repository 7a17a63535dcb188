"""`swarm up` from the first word to the exported model, and what becomes of its processes when it or one of
them is killed."""

import hashlib
import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from swarm_processes import SETTINGS, Program, SwarmProcesses, alive, started_swarm, swarm

from swarm import events, wire
from swarm.core.releases import rank
from swarm.identity import open_key
from swarm.journal import read_journal
from swarm.types import Release

pytestmark = pytest.mark.timeout(300)

SMALL = """
[peer.learner]
record = 4

[peer.swarm]
learners = {learners}
samplers = 1
evaluators = {evaluators}

[run.stop]
versions = {versions}
"""


def up(house: SwarmProcesses) -> Program:
    return house.run("up", "up", str(house.config), "--folder", str(house.folder))


def journal(house: SwarmProcesses) -> list[events.AnyEvent]:
    path = house.folder / "peers" / "seed" / "journal.jsonl"
    return list(read_journal(path)) if path.exists() else []


def trains(house: SwarmProcesses, version: int = 1) -> bool:
    return any(
        isinstance(event, events.Released) and event.release.version >= version for event in journal(house)
    )


@pytest.fixture
def endless(tmp_path: Path) -> Iterator[tuple[SwarmProcesses, Program]]:
    """A swarm of `swarm up` that trains and has no end."""
    with started_swarm(tmp_path, SETTINGS + SMALL.format(learners=1, evaluators=0, versions=0)) as house:
        program = up(house)
        house.wait_until(lambda: trains(house), 180, "the swarm did not train")
        yield house, program


@pytest.mark.slow
def test_a_complete_run_ends_with_a_summary_and_a_model_that_transformers_loads(tmp_path: Path) -> None:
    with started_swarm(tmp_path, SETTINGS + SMALL.format(learners=2, evaluators=1, versions=6)) as house:
        program = up(house)
        family: dict[int, psutil.Process] = {}

        def ended() -> bool:
            if program.process.poll() is None:
                family.update({process.pid: process for process in program.tree()})
            return program.process.poll() is not None

        house.wait_until(ended, 120, "the run did not complete")
        said = program.log.read_text()
        assert program.process.returncode == 0, said
        exported = house.folder / "exported"
        assert str(exported) in " ".join(said.split())
        assert "\npage: http://127.0.0.1:" in said
        house.wait_until(lambda: not alive(list(family.values())), 5, f"left: {list(family.values())}")
        check_model(house, exported)

        status = swarm("status", "--json", "--folder", str(house.folder))
        assert status.returncode == 0, status.stderr
        assert json.loads(status.stdout)["head"]["version"] >= 6
        again = swarm("replay", str(house.folder), "--version", "6")
        assert again.returncode == 0 and "version 6: " in again.stdout, again.stdout + again.stderr


def check_model(house: SwarmProcesses, exported: Path) -> None:
    """It is the newest release that the seed holds, to the last bit."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from swarm.blocks import Blocks
    from swarm.learn.weights import to_bytes

    seed = house.folder / "peers" / "seed"
    run = hashlib.sha256((house.folder / "spec").read_bytes()).hexdigest()
    kept = [
        wire.unseal(path.read_bytes(), run, open_key(seed / "key")) for path in (seed / "releases").iterdir()
    ]
    release = max((wire.decode(opened.body, Release) for opened in kept), key=rank)
    assert release.version >= 6
    model = AutoModelForCausalLM.from_pretrained(exported)
    assert Blocks.of(to_bytes(dict(model.state_dict()))).root == release.weights
    assert len(AutoTokenizer.from_pretrained(exported)) <= model.get_input_embeddings().num_embeddings


@pytest.mark.slow
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
        lambda: any(
            isinstance(e, events.Sampled) and e.at > since
            for e in read_journal(peer_folder / "journal.jsonl")
        ),
        40,
        "the new sampler did not sample",
    )
    assert "sampler-1 died (signal SIGKILL) and is started again" in house.programs[0].log.read_text()


@pytest.mark.slow
def test_nothing_is_left_when_it_is_killed(endless: tuple[SwarmProcesses, Program]) -> None:
    house, program = endless
    everybody = program.tree()
    assert len(everybody) > 8
    program.kill()
    house.wait_until(lambda: not alive(everybody), 15, f"left: {alive(everybody)}")


def test_ctrl_c_ends_all_of_it(endless: tuple[SwarmProcesses, Program]) -> None:
    house, program = endless
    everybody = program.tree()
    program.signal(signal.SIGINT)
    try:
        assert program.process.wait(20) == 130
    except subprocess.TimeoutExpired:
        raise AssertionError(f"it did not end\n{house.tails()}") from None
    house.wait_until(lambda: not alive(everybody), 5, f"left: {everybody}")
