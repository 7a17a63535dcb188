"""Folders of engines: what a killed engine left goes with the next one, and a living engine's stays."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from swarm.sample.scratch import Scratch

HOLDS = "from swarm.sample.scratch import Scratch; s = Scratch('hf'); print(s.path, flush=True); input()"


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    return tmp_path


def another() -> tuple[subprocess.Popen[str], Path]:
    """A process with an engine's folder."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDS], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    folder = Path(process.stdout.readline().strip())
    (folder / "v1").write_bytes(b"weights")
    return process, folder


def test_what_a_killed_engine_left_goes_when_the_next_one_starts(temporary: Path) -> None:
    process, left = another()
    kept = Scratch("hf")
    assert left.exists(), "its engine lives"
    process.kill()
    process.communicate()
    other = Scratch("vllm")
    assert left.exists(), "another kind of engine"
    mine = Scratch("hf")
    assert not left.exists() and kept.path.exists() and mine.path != kept.path
    for each in (kept, other, mine):
        each.remove()
    assert not [*temporary.iterdir()]


def test_folders_that_nobody_of_this_machine_locks_are_none_of_its_business(temporary: Path) -> None:
    names = ["swarm-hf-0a1b2c3d", "swarm-hf-elsewhere.example-1-0a1b2c3d", "swarm-hfx"]
    for name in names:
        (temporary / name).mkdir()
    (temporary / f"swarm-hf-{os.uname().nodename}-1-link").symlink_to(temporary / names[0])
    Scratch("hf").remove()
    assert len([*temporary.iterdir()]) == 4


def test_a_removed_folder_is_made_again_and_is_its_engines_alone(temporary: Path) -> None:
    scratch = Scratch("hf")
    shutil.rmtree(scratch.path)
    scratch.ensure()
    assert scratch.path.stat().st_mode & 0o777 == 0o700
    Scratch("hf").remove()
    assert scratch.path.exists(), "it is locked again"
    shutil.rmtree(scratch.path)
    scratch.path.mkdir()
    (scratch.path / "foreign").touch()
    with pytest.raises(OSError, match="not empty"):  # what is there may be somebody else's
        scratch.ensure()
    assert [*temporary.iterdir()] == [scratch.path]
    scratch.remove()
    scratch.ensure()
    assert not scratch.path.exists(), "removed for good"
    scratch.remove()
