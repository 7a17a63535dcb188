"""What is uploaded, as a stranger gets it: wheel and source archive, their metadata, and an installation from
the wheel, with the packages that it asks for, in an empty environment of each Python."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
from distributions import build, only
from places import ROOT

from swarm import __version__

PYTHONS = ("3.11", "3.12")


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheel and the source archive."""
    out = tmp_path_factory.mktemp("dist")
    build(ROOT, out)
    return out


def interpreter(version: str) -> str | None:
    """A Python of this version on this machine."""
    pyenv = sorted(Path.home().glob(f".pyenv/versions/{version}.*/bin/python"))
    for found in (shutil.which(f"python{version}"), *map(str, pyenv)):
        if found is None:
            continue
        said = subprocess.run([found, "--version"], capture_output=True, text=True, check=False)
        if said.returncode == 0 and said.stdout.startswith(f"Python {version}."):
            return found
    return None


def test_the_registry_can_read_what_the_distribution_says_of_itself(built: Path) -> None:
    pytest.importorskip("twine", reason="twine is not installed: pip install '.[dev]'")
    files = [str(path) for path in sorted(built.iterdir())]
    said = subprocess.run(
        [sys.executable, "-m", "twine", "check", "--strict", *files],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert said.returncode == 0 and said.stdout.count("PASSED") == 2, said


def test_the_source_archive_makes_the_same_wheel(built: Path, tmp_path: Path) -> None:
    with tarfile.open(only(built, "*.tar.gz")) as archive:
        archive.extractall(tmp_path / "source", filter="data")
    build(only(tmp_path / "source", "*"), tmp_path / "again", "-t", "wheel")
    whole, again = only(built, "*.whl"), only(tmp_path / "again", "*.whl")
    with zipfile.ZipFile(whole) as one, zipfile.ZipFile(again) as other:
        assert {each.filename: each.CRC for each in one.infolist()} == {
            each.filename: each.CRC for each in other.infolist()
        }


@pytest.fixture(scope="module", params=PYTHONS)
def installed(request: pytest.FixtureRequest, built: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An empty environment into which pip has installed the wheel, and what it asks for."""
    if (python := interpreter(request.param)) is None:
        pytest.skip(f"there is no Python {request.param} on this machine")
    home = tmp_path_factory.mktemp(f"python{request.param}") / "venv"
    subprocess.run([python, "-m", "venv", "--without-pip", str(home)], check=True, timeout=120)
    pip = [sys.executable, "-m", "pip", "--python", str(home / "bin" / "python"), "--quiet"]
    for words in (["install", "--no-compile", str(only(built, "*.whl"))], ["check"]):
        subprocess.run([*pip, *words], check=True, timeout=300, cwd=home)
    return home


def test_an_empty_environment_has_the_command_and_what_ships(installed: Path, tmp_path: Path) -> None:
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environ["XDG_STATE_HOME"] = str(tmp_path / "state")
    for words, code, said in (
        (["--version"], 0, f"swarm {__version__}"),
        (["--help"], 0, "swarm up demo"),
        (["config", "show", "private-lab"], 0, "run.private = true"),
        (["task", "try", "digit-sums"], 0, "Right answers earn 1"),
        (["doctor"], 3, "pip install 'gepo-swarm[peer]'"),
        (["up", "demo"], 3, "pip install 'gepo-swarm[peer]'"),
    ):
        answer = subprocess.run(
            [str(installed / "bin" / "swarm"), *words],
            cwd=tmp_path,
            env=environ,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert answer.returncode == code and said in answer.stdout + answer.stderr, (words, answer)
    assert not list(installed.glob("lib/python*/site-packages/torch"))
