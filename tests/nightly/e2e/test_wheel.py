"""The wheel, as somebody has it who never saw the repository: what is in it, and what its command does from
an empty folder.

The environment is fresh and holds the wheel alone; the packages that the wheel needs are those of the
environment that runs the test.
"""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest
from places import ROOT

from swarm import events
from swarm.journal import read_journal


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("wheel")
    offline = ("--no-deps", "--no-build-isolation", "--no-index")
    build = [sys.executable, "-m", "pip", "wheel", "--quiet", *offline, "--wheel-dir", str(out), str(ROOT)]
    subprocess.run(build, check=True, timeout=120)
    (built,) = out.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def command(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`swarm` of an environment in which the wheel is installed."""
    home = tmp_path_factory.mktemp("installed") / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(home)], check=True, timeout=120)
    python = home / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet"]
    subprocess.run([*pip, "--no-deps", "--no-index", str(wheel)], check=True, timeout=120)
    (packages,) = home.glob("lib/python*/site-packages")
    # A .pth adds the folder alone: what is installed there for editing stays out.
    (packages / "needed.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return home / "bin" / "swarm"


def ran(command: Path, folder: Path, *words: str, limit: float = 60) -> subprocess.CompletedProcess[str]:
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environ["XDG_STATE_HOME"] = str(folder.parent / f"{folder.name}-state")
    return subprocess.run(
        [str(command), *words],
        cwd=folder,
        env=environ,
        capture_output=True,
        text=True,
        timeout=limit,
        check=False,
        stdin=subprocess.DEVNULL,
    )


def test_the_wheel_has_the_licence_the_types_and_the_configs(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    assert {f"{package}/py.typed" for package in ("swarm", "peers", "dashboard")} <= names
    assert any(name.endswith("licenses/LICENSE") for name in names)
    assert {name for name in names if name.startswith("peers/configs/")} == {
        f"peers/{path.relative_to(ROOT)}" for path in (ROOT / "configs").rglob("*.toml")
    }
    outside = {name.split("/")[0] for name in names} - {"swarm", "peers", "dashboard"}
    assert [name.endswith(".dist-info") for name in outside] == [True]


def test_commands_answer_from_an_empty_folder(command: Path, tmp_path: Path) -> None:
    for words, said in {
        ("--help",): "swarm up demo",
        ("config", "check", "private-lab"): "good",
        ("objectives", "gepo"): "gepo",
        ("sim", "quick"): "journal sha256",
    }.items():
        answer = ran(command, tmp_path, *words, limit=300)
        assert answer.returncode == 0 and said in answer.stdout, (words, answer)
    shown = ran(command, tmp_path, "config", "show", "demo").stdout
    assert "site-packages/peers/configs/demo.toml line" in shown


@pytest.mark.parametrize("words", ["bench", "bench join", "bench nemesis", "sim --nemesis 7"])
def test_what_the_wheel_leaves_out_says_where_it_is_and_how_to_run_it(
    command: Path, tmp_path: Path, words: str
) -> None:
    answer = ran(command, tmp_path, *words.split())
    assert answer.returncode == 3
    assert "lab/" in answer.stderr and f"`.venv/bin/swarm {words}`" in answer.stderr


def test_the_demo_runs_from_an_empty_folder(command: Path, tmp_path: Path) -> None:
    small = ("--set", "run.stop.versions=1", "--set", "swarm.learners=1", "--set", "swarm.samplers=1")
    words = ("up", "demo", "--folder", "run", "--set", "run.evaluation.tasks=16", "--set", "page.port=0")
    answer = ran(command, tmp_path, *words, *small, limit=300)
    assert answer.returncode == 0, answer
    journal = read_journal(tmp_path / "run" / "peers" / "seed" / "journal.jsonl")
    assert any(isinstance(event, events.Released) and event.release.version >= 1 for event in journal)
    assert (tmp_path / "run" / "exported" / "config.json").exists()
