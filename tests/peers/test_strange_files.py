"""A folder that was sent may have pipes, devices and links out of it: every command says so at once."""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from peers import cli
from peers.build.run_folder import check_files, keep_spec
from peers.errors import CANNOT, CannotHere
from swarm import PROTOCOL
from swarm.frames import wire
from swarm.frames.run_types import Spec
from swarm.journal import read_journal
from swarm.membership import invite as invites
from swarm.membership.identity import Keyring
from swarm.protocol import Role
from swarm.settings.config import Run
from swarm.settings.loading import run_dict
from swarm.storage import durable
from swarm.types import Digest

QUICK = 30.0
"""Seconds for a command on a busy machine, most of them Python's imports; a pipe waits for ever."""

NAMES = (
    "spec",
    "owner.key",
    "peer.toml",
    "pause",
    "revoked",
    "genesis",
    "invites/sampler",
    "model/config.json",
)
OF_PEERS = ("pid", "journal.jsonl", "journal-000001.jsonl", "key", "membership", "blobs/x", "releases/x")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    spec = Spec(
        protocol=PROTOCOL, run=run_dict(Run()), owner="", files={}, genesis=Digest(""), release_size=1
    )
    path = keep_spec(tmp_path / "run", wire.encode(spec)).path
    (path / "peers" / "sampler-1").mkdir(parents=True)
    (path / "peers" / "sampler-1" / "journal.jsonl").write_bytes(b"")
    return path


def pipe(path: Path) -> None:
    os.mkfifo(path)


def listens(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as one, contextlib.chdir(path.parent):
        one.bind(path.name)  # a socket's whole path may have 107 bytes


def device(path: Path) -> None:
    path.symlink_to("/dev/zero")


def link(path: Path) -> None:
    path.symlink_to(Path.home(), target_is_directory=True)


def circle(path: Path) -> None:
    path.symlink_to(path.name)


@pytest.mark.parametrize("make", [pipe, listens, device, link, circle])
@pytest.mark.parametrize("name", [*NAMES, *(f"peers/sampler-1/{name}" for name in OF_PEERS)])
def test_what_is_no_file_of_a_folder_is_named(folder: Path, make: Callable[[Path], None], name: str) -> None:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    make(path)
    with pytest.raises(CannotHere, match=f"{path.name} is a (pipe|socket|link to)"):
        check_files(folder)


def test_links_within_a_folder_and_a_folder_that_is_reached_by_one_are_as_good_as_files(folder: Path) -> None:
    (folder / "latest").symlink_to("peers/sampler-1")
    (folder / "whole").symlink_to(folder)
    (folder.parent / "name").symlink_to(folder)
    assert check_files(folder.parent / "name") == folder.parent / "name"


WORD = invites.make(
    Digest("a" * 64), [f"/ip4/127.0.0.1/tcp/4001/p2p/{Keyring.new().me}"], Role.SAMPLER, invites.FOREVER
)

SAID = {
    "status": ["status", "--folder", "DIR"],
    "status of a word": ["status", WORD, "--folder", "DIR"],
    "why": ["why", "--folder", "DIR"],
    "export": ["export", "OUT", "--folder", "DIR"],
    "push": ["push", "ada/model", "--to", "OUT", "--folder", "DIR"],
    "replay": ["replay", "DIR"],
    "replay of a version": ["replay", "--version=1", "DIR"],
    "replay of journals": ["replay", "--audit", "DIR"],
    "verify": ["verify", "DIR/spec", "--folder", "DIR"],
    "plot": ["plot", "DIR", "--out", "OUT.png"],
    "up": ["up", "demo", "--folder", "DIR"],
    "start": ["start", "demo", "--folder", "DIR"],
    "start of another's": ["start", "--adopt", "DIR"],
    "join": ["join", WORD, "--folder", "DIR"],
    "dashboard": ["dashboard", WORD, "--folder", "DIR"],
    "leave": ["leave", "--folder", "DIR"],
    "pause": ["pause", "--folder", "DIR"],
    "resume": ["resume", "--folder", "DIR"],
    "doctor": ["doctor", "--folder", "DIR"],
    "invite": ["invite", "--folder", "DIR"],
    "revoke": ["revoke", "somebody", "--folder", "DIR"],
    "pardon": ["pardon", "somebody", "--folder", "DIR"],
    "forget": ["forget", "--yes", "--folder", "DIR"],
    "update": ["update", "--folder", "DIR"],
    "identity": ["identity", "export", "OUT", "--folder", "DIR"],
}


@pytest.mark.parametrize("said", SAID)
def test_every_command_on_a_folder_refuses_a_pipe_in_it(
    folder: Path, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    os.mkfifo(folder / "peers" / "sampler-1" / "pid")
    began = time.monotonic()
    places = {"DIR": str(folder), "OUT": str(tmp_path / "out")}
    words = [_replaced(word, places) for word in SAID[said]]
    assert cli.main(words) == CANNOT
    told = capsys.readouterr().err
    assert "pid is a pipe" in told and "remove it" in told and "Traceback" not in told
    assert time.monotonic() - began < QUICK


def _replaced(word: str, places: dict[str, str]) -> str:
    for name, place in places.items():
        word = word.replace(name, place) if word.startswith(name) else word
    return word


@pytest.mark.parametrize("said", [["verify"], ["replay"], ["replay", "--audit"], ["plot"]], ids=" ".join)
def test_a_file_that_is_named_and_is_none_is_refused_at_once(
    tmp_path: Path, said: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    os.mkfifo(tmp_path / "journal.jsonl")
    for path in (tmp_path / "journal.jsonl", Path("/dev/zero")):
        assert cli.main([*said, str(path)]) == CANNOT
        assert "is a pipe" in (told := capsys.readouterr().err) or "is a device" in told


def test_a_pipe_is_not_waited_for_where_a_file_is_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "journal.jsonl")
    for open_it in (durable.opened, durable.read_checked, lambda path: [*read_journal(path)]):
        with pytest.raises(OSError, match="Illegal seek"):
            open_it(tmp_path / "journal.jsonl")
    with pytest.raises(IsADirectoryError):
        durable.opened(tmp_path)
