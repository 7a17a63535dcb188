"""Packages whose code makes tasks: which they are, and versions that are not those of the run."""

from __future__ import annotations

import re
import sys
from importlib.metadata import version
from pathlib import Path

import pytest
from made_packages import package

from swarm.settings.config import Evaluation, EvaluationSet, Run, TaskSettings
from swarm.tasks import packages
from swarm.tasks.base import NotInstalled, TaskError
from swarm.tasks.workers.verifier import PYTHON

MINE = TaskSettings(name="mine")


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.syspath_prepend(str(package(tmp_path / "site", "1.2")))
    return tmp_path / "site"


def test_a_source_is_of_its_package_and_built_in_ones_and_data_are_of_none(mine: Path) -> None:
    assert packages.installed(MINE) == {"my-tasks": "1.2"}
    assert packages.installed(TaskSettings(name="gym:chain_sum")) == {
        "reasoning-gym": version("reasoning-gym")
    }
    for name in ("digit-sums", "data:./rows.jsonl", "data:org/rows"):
        assert packages.installed(TaskSettings(name=name)) == {}


def test_packages_of_an_evaluation_set_stand_apart(mine: Path) -> None:
    gym = version("reasoning-gym")
    sets = {"hard": EvaluationSet(name="gym:chain_sum"), "again": EvaluationSet()}
    found = packages.of_run(Run(task=MINE, evaluation=Evaluation(sets=sets)))
    assert found == {"my-tasks": "1.2", "hard/reasoning-gym": gym, "again/my-tasks": "1.2"}
    assert packages.of_set(found) == {"my-tasks": "1.2"}
    assert packages.of_set(found, "hard") == {"reasoning-gym": gym}


@pytest.mark.parametrize("name", ["my-tasks", "my_tasks"])
def test_an_environment_of_verifiers_is_looked_up_where_verifiers_is(
    mine: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    package(mine.parent / "other", "3.4")
    monkeypatch.setenv(PYTHON, sys.executable)
    monkeypatch.setenv("PYTHONPATH", str(mine.parent / "other"))
    found = packages.installed(TaskSettings(name=f"verifiers:{name}"))
    assert found.pop("my-tasks") == "3.4" and found.keys() <= {"verifiers"}
    monkeypatch.setenv(PYTHON, "/bin/false")
    with pytest.raises(TaskError, match="/bin/false does not say which version of verifiers it has"):
        packages.installed(TaskSettings(name=f"verifiers:{name}"))


def test_the_versions_of_the_run_are_asked_for_and_none_where_it_fixed_none(mine: Path) -> None:
    packages.check(MINE, {"my-tasks": "1.2"})
    packages.check(TaskSettings(name="gym:chain_sum"), {})
    said = "the tasks of this run are those of my-tasks 1.1, and here is 1.2, which may make others"
    with pytest.raises(NotInstalled, match=re.escape(f"{said}: pip install 'my-tasks==1.1'")):
        packages.check(MINE, {"my-tasks": "1.1"})


def test_a_package_that_is_not_here_is_named_with_its_version(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PYTHON, sys.executable)
    wanted = {"verifiers": "0.4.0", "no-such-tasks": "1.0"}
    with pytest.raises(NotInstalled) as refused:
        packages.check(TaskSettings(name="verifiers:no-such-tasks"), wanted)
    assert str(refused.value).endswith(
        f": {sys.executable} -m pip install 'verifiers==0.4.0' 'no-such-tasks==1.0'"
    )
