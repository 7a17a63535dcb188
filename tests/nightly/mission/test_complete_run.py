"""`swarm up` from the first word to the exported model, and what becomes of its processes when it or one of
them is killed. test_observer.py ends its swarm by Ctrl-C."""

import hashlib
import json
from pathlib import Path

import psutil
from swarm_processes import SETTINGS, UP, SwarmProcesses, alive, started_swarm, swarm

from swarm.core.agreement.releases import rank
from swarm.frames import wire
from swarm.membership.identity import open_key
from swarm.types import Release

RECORD = "\n[peer.learner]\nrecord = 4\n"


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
