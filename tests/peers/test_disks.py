"""A disk that is full or fails costs what needs a disk: events, a pid, a port, a view; never a peer, nor the
cause of its end."""

from __future__ import annotations

import errno
import io
import os
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from peers import errors
from peers.build import local_peer
from peers.build.local_peer import LocalPeer, last_port
from peers.commands import up
from peers.runtime.contacts import Contacts
from peers.runtime.peer_folder import PeerFolder
from swarm import events
from swarm.config import Config, Listen
from swarm.events import Bus, Noted
from swarm.identity import open_key
from swarm.journal import Journal, from_line
from swarm.types import PeerId


def failed(*_: Any, **__: Any) -> Any:
    raise OSError(errno.EIO, os.strerror(errno.EIO))


class Disk(io.FileIO):
    """A file whose disk fails while `dead` is set, in the middle of a line."""

    dead = False

    def write(self, data: Any) -> int:
        if not self.dead:
            return super().write(data)
        super().write(bytes(data)[:5])
        return failed()

    def truncate(self, size: int | None = None) -> int:
        return failed() if self.dead else super().truncate(size)


def noted(text: str) -> Noted:
    return Noted(at=0.0, peer=PeerId("me"), level="info", text=text)


def test_a_journal_on_a_disk_that_fails_loses_events_and_goes_on_when_the_disk_does(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal.jsonl")
    journal._file.close()
    journal._file = disk = Disk(tmp_path / "journal.jsonl", "a+")  # type: ignore[assignment]
    journal(noted("one"))
    disk.dead = True
    journal(noted("two"))
    journal(noted("three"))
    disk.dead = False
    journal(noted("four"))
    disk.dead = True
    journal(noted("five"))
    journal.close()
    lines = (tmp_path / "journal.jsonl").read_bytes().splitlines(keepends=True)
    assert [from_line(line) for line in lines if line.endswith(b"\n")] == [noted("one"), noted("four")]
    assert journal.lost == 3
    again = Journal(tmp_path / "journal.jsonl")
    again(noted("six"))
    again.close()
    assert [from_line(line) for line in again.path.read_bytes().splitlines(keepends=True)] == [
        noted("one"),
        noted("four"),
        noted("six"),
    ]


def test_a_disk_that_fails_does_not_hide_why_a_peer_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(KeyError, match="the cause"):
        with PeerFolder(tmp_path / "folder"):
            monkeypatch.setattr(os, "ftruncate", failed)
            raise KeyError("the cause")
    monkeypatch.undo()
    assert PeerFolder(tmp_path / "folder").take(), "the folder is free again"


def test_a_disk_that_fails_is_no_bug_of_ours(capsys: pytest.CaptureFixture[str]) -> None:
    assert errors.guarded(failed) == 3
    said = capsys.readouterr().err
    assert "the disk fails (see the kernel's log, `dmesg`)" in said and "bug" not in said


@pytest.mark.parametrize("said", ["80000", "", "12x", "-1", "²", "99999999999999999999"])
def test_a_kept_port_that_is_no_port_is_forgotten(tmp_path: Path, said: str) -> None:
    (tmp_path / "port").write_text(said)
    assert last_port(Listen(), tmp_path / "port") == Listen()
    (tmp_path / "port").write_text("4711")
    assert last_port(Listen(), tmp_path / "port").port == 4711


def test_what_cannot_be_kept_for_a_later_start_is_told_and_the_peer_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[events.Event] = []
    keyring = open_key(tmp_path / "key")
    local = LocalPeer(tmp_path, keyring, Bus(), Contacts(tmp_path, keyring.me), incarnation=1)
    local.bus.add(told.append)
    monkeypatch.setattr(local_peer, "write_durably", failed)
    local.keep(tmp_path / "port", "4711", "it takes another port when it is started again")
    (fault,) = told
    assert isinstance(fault, events.Faulted) and fault.part == "disk"
    assert (
        fault.detail
        == "port is not on the disk (Input/output error): it takes another port when it is started again"
    )


def household(tmp_path: Path, code: int) -> tuple[up.Children, up.PeerProcess]:
    house = up.Children(tmp_path, Config())
    child = house.children["seed"] = up.PeerProcess("seed", [], tmp_path / "logs" / "seed.log")
    child.log.write_text("swarm: cannot use blobs: the disk is full\n")
    child.process, child.started_at = subprocess.Popen(["sh", "-c", f"exit {code}"]), time.monotonic()
    child.process.wait()
    return house, child


def test_a_child_that_has_run_and_cannot_now_is_started_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    house, child = household(tmp_path, 3)
    child.stable = True
    started: list[str] = []
    monkeypatch.setattr(up.PeerProcess, "start", lambda self: started.append(self.name))
    house._look()
    said = " ".join(capsys.readouterr().err.split())
    assert "seed died (exit code 3: cannot use blobs: the disk is full) and is started again" in said
    child.restart_at = 0.0
    house._look()
    assert started == ["seed"]


def test_a_child_that_ended_with_a_bug_says_which(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    house, child = household(tmp_path, 1)
    child.log.write_text("Traceback ...\nswarm: this is a bug in swarm (KeyError: 'a')\n")
    house._look()
    said = " ".join(capsys.readouterr().err.split())
    assert "seed died (exit code 1: this is a bug in swarm (KeyError: 'a')) and is started again" in said


def test_a_child_that_never_ran_ends_the_swarm_with_its_message(tmp_path: Path) -> None:
    house, _ = household(tmp_path, 3)
    with pytest.raises(errors.CannotHere, match="seed cannot run: cannot use blobs: the disk is full"):
        house._look()


def test_a_view_whose_journal_cannot_be_read_says_so_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    house = up.Children(tmp_path, Config())
    monkeypatch.setattr(house.journal, "news", failed)
    for _ in range(3):
        house._read()
    assert " ".join(capsys.readouterr().err.split()).count("cannot be read: Input/output error") == 1


def test_a_child_whose_log_cannot_be_opened_is_started_without_one(tmp_path: Path) -> None:
    with up._opened(tmp_path) as log:  # a folder is no file
        assert log.name == os.devnull
