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
from peers.build.run_folder import check_files, keep_spec, read
from peers.errors import CANNOT, CannotHere
from swarm import PROTOCOL, events, journal
from swarm.frames import wire
from swarm.frames.run_types import Spec
from swarm.journal import read_journal, to_line
from swarm.membership import invite as invites
from swarm.membership.identity import Keyring
from swarm.protocol import Role
from swarm.settings.config import Run
from swarm.settings.loading import run_dict
from swarm.storage import durable
from swarm.types import Digest, PeerId

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


HUGE = 20_000_000_000
LARGE_ONES = ("config.toml", "task/rewards-0.py", "task/data.parquet", "model/tokenizer.json", "spec.new")
LARGE_OF_PEERS = (
    "pid",
    "key",
    "membership",
    "releases/x",
    "members",
    "contacts",
    "history",
    "outbox/00000000.log",
    "checkpoint/groups/00000001.log",
)
UNREAD = (
    "genesis",
    "model/model.safetensors",
    "cache/a.arrow",
    "logs/seed.log",
    *(f"peers/seed/{name}" for name in ("blobs/x", "log", "journal.jsonl", "checkpoint/model")),
)


@pytest.mark.parametrize(
    "name",
    [
        *(name for name in (*NAMES, *LARGE_ONES) if name not in UNREAD),
        *(f"peers/sampler-1/{name}" for name in LARGE_OF_PEERS),
    ],
)
def test_a_file_that_is_larger_than_any_runs_is_refused_before_it_is_read(folder: Path, name: str) -> None:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "ab") as file:
        file.truncate(HUGE)
    with pytest.raises(CannotHere, match=rf"{path.name} has 20,000 MB, and a run's has \d+ at most"):
        check_files(folder)


@pytest.mark.parametrize("name", UNREAD)
def test_what_is_not_read_at_once_may_be_large(folder: Path, name: str) -> None:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "ab") as file:
        file.truncate(HUGE)
    assert check_files(folder) == folder


def large(path: Path) -> None:
    path.touch()
    os.truncate(path, HUGE)


@pytest.mark.parametrize("make, what", [(pipe, "is a pipe"), (large, "has 20,000 MB")])
def test_of_a_link_inside_the_folder_counts_what_it_leads_to(
    folder: Path, make: Callable[[Path], None], what: str
) -> None:
    make(folder / "other")
    (folder / "peers" / "sampler-1" / "members").symlink_to(folder / "other")
    with pytest.raises(CannotHere, match=f"members {what}"):
        check_files(folder)


@pytest.mark.parametrize("said", ["status", "export", "up", "verify", "replay of journals", "invite"])
@pytest.mark.parametrize("name", ["peer.toml", "peers/sampler-1/members", "model/config.json"])
def test_a_command_refuses_a_file_that_would_take_all_memory(
    folder: Path, said: str, name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / name).touch()
    os.truncate(folder / name, HUGE)
    places = {"DIR": str(folder), "OUT": str(tmp_path / "out")}
    assert cli.main([_replaced(word, places) for word in SAID[said]]) == CANNOT
    assert "has 20,000 MB" in (told := capsys.readouterr().err) and "Traceback" not in told


def test_evidence_and_an_identity_are_read_up_to_a_size(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "sent"
    path.touch()
    os.truncate(path, HUGE)
    for said in (["verify", str(path), "--folder", str(folder)], ["identity", "import", str(path)]):
        assert cli.main(said) == CANNOT
        assert "sent has 20,000 MB" in capsys.readouterr().err


def test_version_0_of_another_size_than_the_runs_is_not_read(folder: Path) -> None:
    (folder / "genesis").touch()
    os.truncate(folder / "genesis", HUGE)
    run = read(folder)
    assert run is not None
    with pytest.raises(CannotHere, match="genesis is damaged: its 20000000000 bytes"):
        run.genesis()


def test_a_line_of_a_journal_is_read_up_to_a_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal, "FILE", 1000)
    event = to_line(events.Noted(at=1.0, peer=PeerId("a"), level="info", text="before"))
    long, path = b"x" * 2500 + b"\n", tmp_path / "journal.jsonl"
    path.write_bytes(event + long + event + b"y" * 2500)
    told: list[journal.Damage] = []
    tail = journal.Tail(path, told.append)
    assert len([*tail.news()]) == 2 and [damage.line for damage in told] == [2]
    with open(path, "ab") as more:
        more.write(b"\n" + event)
    assert len([*tail.news()]) == 1 and told[-1].lines == 2


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
