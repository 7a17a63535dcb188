"""What `pip install 'gepo-swarm[peer]'` gives today: the wheel with the newest packages that its ranges let
in, which no lock names, in an empty environment. A whole swarm has to run there, with all weights and with
adapters."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from distributions import build, only
from places import ROOT

from swarm import events
from swarm.journal import read_journal

pytestmark = [pytest.mark.timeout(2400)]

VERSIONS = 3

SMALL = (
    f"run.stop.versions={VERSIONS}",
    "run.evaluation.tasks=16",
    "run.optimizer.lr=1e-3",
    "swarm.learners=1",
    "swarm.samplers=1",
    "swarm.evaluators=0",
    "listen.host=127.0.0.1",
    "page.port=0",
)


@pytest.fixture(scope="module")
def newest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with the wheel, `[peer]` and the newest of what that asks for; torch before it, whose
    CPU build is taken where it is on the disk."""
    dist = tmp_path_factory.mktemp("dist")
    build(ROOT, dist, "-t", "wheel")
    home = tmp_path_factory.mktemp("newest") / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(home)], check=True, timeout=120)
    pip = [sys.executable, "-m", "pip", "--python", str(home / "bin" / "python"), "--quiet"]
    constraints = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    (torch,) = (line for line in constraints if line.startswith("torch=="))
    for words in (
        ["install", "--no-compile", torch],
        ["install", "--no-compile", f"{only(dist, '*.whl')}[peer]"],
        ["check"],
    ):
        subprocess.run([*pip, *words], check=True, timeout=900, cwd=home)
    return home


@pytest.mark.parametrize("training", ["full", "lora"])
def test_a_swarm_of_the_newest_packages_trains_and_exports(
    newest: Path, tmp_path: Path, training: str
) -> None:
    sets = [word for each in (*SMALL, f"run.model.training={training}") for word in ("--set", each)]
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environ |= {"XDG_STATE_HOME": str(tmp_path / "state"), "OMP_NUM_THREADS": "1"}
    ran = subprocess.run(
        [str(newest / "bin" / "swarm"), "up", "demo", "--folder", "run", *sets],
        cwd=tmp_path,
        env=environ,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert ran.returncode == 0, ran
    told = read_journal(tmp_path / "run" / "peers" / "seed" / "journal.jsonl")
    assert max(event.release.version for event in told if isinstance(event, events.Released)) >= VERSIONS
    assert (tmp_path / "run" / "exported" / "model.safetensors").exists()
    assert (tmp_path / "run" / "exported" / "adapter").exists() is (training == "lora")
