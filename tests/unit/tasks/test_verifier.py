"""Tasks of a verifiers package, made here, in the process that verifiers runs in: this Python's, or
SWARM_VERIFIERS_PYTHON's."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from swarm import tasks
from swarm.settings import config
from swarm.tasks.base import TaskError
from swarm.tasks.workers.verifier import PYTHON, Verifier


def test_a_file_of_the_peer_is_no_system_prompt(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(TaskError, match=r"write the text to run.task.system"):
        Verifier("tiny-sums", 1, {"system_prompt": "/etc/passwd"}, 5.0)


def test_without_verifiers_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(PYTHON, raising=False)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(
        TaskError, match=r"pip install 'gepo-swarm\[verifiers\]', or set SWARM_VERIFIERS_PYTHON"
    ):
        Verifier("tiny-sums", 1, {}, 5.0)


def test_an_interpreter_that_is_none_is_refused_and_one_that_lacks_msgspec_told(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(PYTHON, str(tmp_path / "python"))
    with pytest.raises(TaskError, match="which is not a program"):
        Verifier("tiny-sums", 1, {}, 5.0)
    bare = tmp_path / "python"
    bare.write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')
    bare.chmod(0o755)
    with pytest.raises(TaskError, match=r"No module named 'msgspec': .*python -m pip install msgspec"):
        tasks.source(config.TaskSettings(name="verifiers:tiny-sums"), 1)
