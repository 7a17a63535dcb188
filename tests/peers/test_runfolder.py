"""The run folder: one run for ever, one process a corner."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from peers import runfolder
from peers.errors import CannotHere, Refusal
from peers.runfolder import Corner, RunFolder, free_corner, running
from swarm.config import Run
from swarm.core.trust import Trust
from swarm.identity import open_key, verify
from swarm.types import Role


@pytest.fixture
def policy(tmp_path: Path) -> Path:
    folder = tmp_path / "policy"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    (folder / "secrets.txt").write_text("mine")
    save_file({"weight": torch.arange(4.0)}, folder / "model.safetensors")
    return folder


@pytest.fixture
def run(tmp_path: Path, policy: Path) -> RunFolder:
    return runfolder.create(tmp_path / "run", Run(), policy)


def test_a_run_that_was_created_is_read_back(run: RunFolder) -> None:
    assert runfolder.read(run.path) == run
    assert set(run.spec.files) == {"config.json"}, "only what a model needs travels"


def test_the_same_settings_open_the_same_run_and_others_are_refused_by_their_names(run: RunFolder, policy: Path) -> None:
    assert runfolder.create(run.path, Run(), policy) == run
    with pytest.raises(Refusal, match=r"other settings \(seed\)"):
        runfolder.create(run.path, Run(seed=2), policy)


def test_a_folder_belongs_to_one_run(run: RunFolder) -> None:
    content = (run.path / "spec").read_bytes()
    assert runfolder.keep(run.path, content) == run
    with pytest.raises(Refusal, match="another folder"):
        runfolder.keep(run.path, content.replace(b"demo", b"omed"))
    assert (run.path / "spec").read_bytes() == content


def test_a_damaged_spec_says_what_to_do(run: RunFolder) -> None:
    (run.path / "spec").write_bytes(b"\x00garbage")
    with pytest.raises(CannotHere, match="move the folder away"):
        runfolder.read(run.path)


def test_a_policy_without_weights_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(CannotHere, match="safetensors"):
        runfolder.create(tmp_path / "run", Run(), tmp_path / "empty")
    assert runfolder.read(tmp_path / "run") is None


def test_a_membership_made_here_is_signed_by_the_owner(run: RunFolder, tmp_path: Path) -> None:
    peer = open_key(tmp_path / "peer.key")
    membership = run.member(peer, Role.LEARNER)
    trust = Trust(str(run.spec.run["name"]), bytes.fromhex(run.spec.owner), False, verify)
    assert trust.objection(peer.me, Role.LEARNER, membership, 0.0) is None


def test_who_only_joined_cannot_invite(run: RunFolder) -> None:
    (run.path / "owner.key").unlink()
    with pytest.raises(Refusal, match="only the machine that started the run"):
        run.owner()


def test_a_corner_is_held_by_one_process(tmp_path: Path) -> None:
    with Corner(tmp_path / "peers" / "x"):
        with pytest.raises(CannotHere, match=f"in use by process {os.getpid()}"), Corner(tmp_path / "peers" / "x"):
            pass
        assert running(tmp_path) == {"x": os.getpid()}
    assert running(tmp_path) == {}
    with Corner(tmp_path / "peers" / "x"):
        pass


def test_a_peer_takes_the_first_free_corner_and_gets_its_own_back(tmp_path: Path) -> None:
    first, second = (free_corner(tmp_path, Role.SAMPLER) for _ in range(2))
    assert [first.path.name, second.path.name] == ["sampler-1", "sampler-2"]
    first.release()
    third = free_corner(tmp_path, Role.SAMPLER)
    assert third.path.name == "sampler-1"
    second.release()
    third.release()
