"""Peers of one protocol and of different versions of this program: today's, and the one whose bytes
`wire_nouns` keeps, which is the first of this protocol, or the newest that was released since."""

import io
import subprocess
import tarfile
from collections.abc import Sequence
from pathlib import Path

import pytest
import wire_nouns
from swarm_processes import ROOT, UNHURRIED, SwarmProcesses, admitted, averaged, started_swarm, swarm

from swarm import events


def git(*words: str) -> bytes:
    return subprocess.run(["git", *words], cwd=ROOT, check=True, capture_output=True).stdout


@pytest.fixture(scope="module")
def old(tmp_path_factory: pytest.TempPathFactory) -> Sequence[str]:
    """What comes before a command that is to be the older program's."""
    kept = wire_nouns.KEPT.relative_to(ROOT).as_posix()
    try:
        first = git("log", "--diff-filter=A", "--format=%H", "--", kept).decode().split()
        tags = git("tag", "--sort=creatordate", "--contains", *first[-1:]).decode().split() if first else []
        archive = git("archive", *(tags or first)[-1:])
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"the older version is in the history of git, which is not here: {error}")
    folder = tmp_path_factory.mktemp("older")
    with tarfile.open(fileobj=io.BytesIO(archive)) as files:
        files.extractall(folder, filter="data")
    return ("env", f"--chdir={folder}", f"PYTHONPATH={folder}")


def test_learners_and_samplers_of_both_versions_train_together(tmp_path: Path, old: Sequence[str]) -> None:
    with started_swarm(tmp_path) as house:
        house.seed()
        learners = [house.join("learner"), house.join("learner", wrap=old)]
        samplers = [house.join("sampler", *UNHURRIED), house.join("sampler", *UNHURRIED, wrap=old)]
        house.wait_until(
            lambda: all(one.saw(events.Started) for one in (*learners, *samplers)), 120, "not all started"
        )
        house.wait_until(lambda: len(averaged(learners[0], learners)) >= 5, 120, "no five rounds of both")
        house.wait_until(
            lambda: all(admitted(one, two.peer) for one in learners for two in samplers),
            120,
            "a learner took no group of one of the samplers",
        )
        refused = [event for one in learners for event in one.saw(events.Judged, verdict="malformed")]
        assert not refused


def test_a_folder_of_the_older_version_goes_on_and_back(tmp_path: Path, old: Sequence[str]) -> None:
    with started_swarm(tmp_path) as house:
        before = trained(house, old)
        between = trained(house, ())
        assert between > before
        assert trained(house, old) > between
        audit = swarm("replay", "--audit", str(house.folder))
        assert audit.returncode == 0, audit.stdout


def trained(house: SwarmProcesses, program: Sequence[str]) -> int:
    """Three versions more by this program, ended by SIGKILL: the newest one."""
    seed, learner = house.seed(wrap=program), house.join("learner", wrap=program)
    house.join("sampler", *UNHURRIED, wrap=program)
    house.wait_until(lambda: len(learner.saw(events.Trained)) >= 3, 120, "no three versions")
    house.end()
    return max(event.release.version for event in seed.saw(events.Released))
