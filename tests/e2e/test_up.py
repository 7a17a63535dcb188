"""`swarm up` from the first word to the exported model, and what becomes of its processes when it or one of
them is killed. test_observer.py ends its swarm by Ctrl-C."""

import hashlib
import json
import os
import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from swarm_processes import SETTINGS, UP, Program, SwarmProcesses, alive, started_swarm, swarm

from peers.errors import CannotHere
from swarm import events
from swarm.core.agreement.releases import rank
from swarm.frames import wire
from swarm.membership.identity import open_key
from swarm.types import Release

RECORD = "\n[peer.learner]\nrecord = 4\n"


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


@pytest.mark.slow
def test_a_complete_run_ends_with_a_summary_and_a_model_that_transformers_loads(tmp_path: Path) -> None:
    settings = SETTINGS + UP.format(learners=2, evaluators=1, versions=6) + RECORD
    with started_swarm(tmp_path, settings) as house:
        program = house.up()
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
        assert "\ndashboard: http://127.0.0.1:" in said
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

    from swarm.learn.files.weights import to_bytes
    from swarm.storage.blocks import Blocks

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
        lambda: any(e.at > since for e in house.told("sampler-1", events.Sampled)),
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


@pytest.mark.slow
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
