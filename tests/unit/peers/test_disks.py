"""A disk that is full or fails costs what needs a disk: events, a pid, a port, a view; never a peer, nor the
cause of its end."""

from __future__ import annotations

import errno
import io
import os
import random
import subprocess
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from small_disks import fill, small_memory_disk
from still_host import still_host

from peers import errors
from peers.build import local_peer
from peers.build.local_peer import LocalPeer, last_port, open_local_peer
from peers.commands.runs import up
from peers.runtime.host import Host
from peers.runtime.membership.contacts import Contacts
from peers.runtime.peer_folder import PeerFolder, running
from swarm import events
from swarm.events import Bus, Noted
from swarm.journal import Journal, from_line, read_journal
from swarm.membership.identity import open_key
from swarm.net.blobs.shelves import Held, Shelf
from swarm.net.memory.network import MemoryNetwork
from swarm.protocol import Role
from swarm.settings.config import Config, DelayLaw, Listen
from swarm.sim.clock import run
from swarm.sim.links import SimLinks
from swarm.storage.blocks import Blocks
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


def with_host(body: Callable[[Host], Awaitable[None]]) -> None:
    async def main() -> None:
        links = SimLinks(DelayLaw(law="constant", seconds=0.001), 1e9, random.Random(1))
        async with MemoryNetwork(random.Random(2), links) as network:
            await body(still_host(network, "peer", Role.SAMPLER, Config()))

    run(main())


def local_peer_at(path: Path, bus: Bus, journal: Journal | None = None) -> LocalPeer:
    keyring = open_key(path / "key")
    return LocalPeer(path, keyring, bus, Contacts(path, keyring.me), 1, journal)


def noted(text: str) -> Noted:
    return Noted(at=0.0, peer=PeerId("me"), level="info", text=text)


def test_a_journal_on_a_disk_that_fails_loses_events_and_goes_on_when_the_disk_does(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal.jsonl")
    assert journal._file is not None
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


def test_a_journal_tells_once_that_the_disk_refuses_and_once_that_it_does_not(tmp_path: Path) -> None:
    async def body(host: Host) -> None:
        journal = Journal(tmp_path / "journal.jsonl")
        local = local_peer_at(tmp_path, host.bus, journal)
        host.bus.add(journal)
        local.report_journal_faults(host.disk)
        assert journal._file is not None
        journal._file.close()
        journal._file = disk = Disk(tmp_path / "journal.jsonl", "a+")  # type: ignore[assignment]
        told: list[events.Event] = []
        host.bus.add(told.append)
        disk.dead = True
        for _ in range(20):
            host.emit(events.Noted, level="info", text="one")
        assert [type(event).__name__ for event in told].count("Faulted") == 1 and journal.lost == 21
        disk.dead = False
        host.emit(events.Noted, level="info", text="two")
        assert [type(event).__name__ for event in told].count("Recovered") == 1 and not host.disk.refuses
        kept = [from_line(line) for line in journal.path.read_bytes().splitlines()]
        assert [type(event).__name__ for event in kept] == ["Noted", "Recovered"]

    with_host(body)


def test_what_the_disk_refuses_is_told_for_each_thing_once_a_minute_and_its_end_when_all_are_taken() -> None:
    async def body(host: Host) -> None:
        told: list[events.Event] = []
        host.bus.add(told.append)
        for _ in range(130):
            host.disk.report("checkpoint", "no checkpoint of version 1: No space left on device")
            await host.ports.clock.sleep(1.0)
        assert [type(event).__name__ for event in told] == ["Faulted"] * 3
        host.disk.report("releases", "blobs takes no more")
        host.disk.report("checkpoint", "")
        assert host.disk.refuses and [type(event).__name__ for event in told] == ["Faulted"] * 4
        host.disk.report("releases", "")
        host.disk.report("releases", "")
        assert not host.disk.refuses and isinstance(told[-1], events.Recovered) and len(told) == 5
        assert told[-1].seconds == 130.0

    with_host(body)


def test_a_disk_that_takes_and_refuses_in_turns_is_told_once_a_minute(tmp_path: Path) -> None:
    async def body(host: Host) -> None:
        told: list[events.Event] = []
        host.bus.add(told.append)
        for _ in range(119):
            for why in ("blobs takes no more", ""):
                host.disk.report("releases", why)
            await host.ports.clock.sleep(1.0)
        assert [type(event).__name__ for event in told] == ["Faulted", "Recovered"] * 2

    with_host(body)


def test_a_journal_whose_file_cannot_be_opened_is_opened_when_it_can_be(tmp_path: Path) -> None:
    (tmp_path / "journal.jsonl").mkdir()
    journal = Journal(tmp_path / "journal.jsonl")
    journal(noted("one"))
    assert journal.lost == 1 and journal.refusal == "Is a directory"
    (tmp_path / "journal.jsonl").rmdir()
    journal(noted("two"))
    journal.close()
    assert journal.lost == 1 and not journal.refusal
    assert [from_line(line) for line in journal.path.read_bytes().splitlines()] == [noted("two")]


def test_a_disk_that_fails_does_not_hide_why_a_peer_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(KeyError, match="the cause"):
        with PeerFolder(tmp_path / "folder"):
            monkeypatch.setattr(os, "ftruncate", failed)
            raise KeyError("the cause")
    monkeypatch.undo()
    assert PeerFolder(tmp_path / "folder").take(), "the folder is free again"


def test_a_log_on_a_full_disk_lacks_lines_and_has_the_next_ones(capfd: pytest.CaptureFixture[str]) -> None:
    full = io.TextIOWrapper(io.FileIO("/dev/full", "w"), write_through=True)  # type: ignore[arg-type]
    errors.say("lost", full)
    assert os.readlink(f"/proc/self/fd/{full.fileno()}") == "/dev/full", "the next line is tried again"
    errors.say("here")
    assert capfd.readouterr().err == "here\n"


def test_a_disk_that_fails_is_no_bug_of_ours(capsys: pytest.CaptureFixture[str]) -> None:
    assert errors.guarded(failed) == 3
    said = capsys.readouterr().err
    assert "the disk fails (see the kernel's log, `dmesg`)" in said and "bug" not in said


@pytest.mark.parametrize("said", ["80000", "", "12x", "-1", "²", "99999999999999999999"])
def test_a_kept_port_that_is_no_port_is_forgotten(tmp_path: Path, said: str) -> None:
    (tmp_path / "port").write_text(said)
    assert last_port(Listen(), tmp_path / "port") == 0
    (tmp_path / "port").write_text("4711")
    assert last_port(Listen(), tmp_path / "port") == 4711
    for named in (Listen(port=4712), Listen(dial_only=True)):
        assert last_port(named, tmp_path / "port") == 0


def test_what_cannot_be_kept_for_a_later_start_is_told_and_the_peer_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[events.Event] = []
    local = local_peer_at(tmp_path, Bus())
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


def test_a_child_that_was_killed_says_what_may_be_behind_that(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    house, child = household(tmp_path, 0)
    child.process = subprocess.Popen(["sh", "-c", "kill -9 $$"])
    child.process.wait()
    house._look()
    said = " ".join(capsys.readouterr().err.split())
    assert "seed died (signal SIGKILL) and is started again (the kernel does that when the" in said
    assert "memory runs out: see dmesg)" in said


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


@pytest.mark.parametrize("full", [True, False])
def test_a_start_that_waits_for_its_seed_says_for_what_and_whether_the_disk_is_full(
    small_disk: Path, full: bool
) -> None:
    house, _ = household(small_disk, 0)
    if full:
        fill(small_disk)
    said = house.waits_for()
    assert f"the seed has not written its invites to {small_disk / 'invites'}" in said
    assert "it said last: cannot use blobs" in said and ("make room" in said) is full


def test_a_child_whose_log_cannot_be_opened_is_started_without_one(tmp_path: Path) -> None:
    with up._opened(tmp_path) as log:  # a folder is no file
        assert log.name == os.devnull


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own, as a folder."""
    with small_memory_disk(tmp_path / "disk") as disk:
        yield disk


def test_a_peer_that_has_been_here_starts_on_a_disk_that_is_read_only_now_and_gives_what_it_holds(
    small_disk: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    blocks = Blocks.of(b"weights" * 9)
    with open_local_peer(PeerFolder(small_disk / "peers" / "seed")) as local:
        me = local.keyring.me
        shelf = Shelf(local.folder / "blobs", pytest.fail)
        shelf.put(Held.of(4, blocks), blocks, True)
        del shelf
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    with open_local_peer(PeerFolder(small_disk / "peers" / "seed")) as local:
        assert local.keyring.me == me and [*running(small_disk)] == ["seed"]
        local.bus.emit(noted("lost"))
        shelf = Shelf(local.folder / "blobs", pytest.fail)
        assert shelf.get(blocks.root) == blocks.whole
        newer = Blocks.of(b"newer" * 9)
        shelf.put(Held.of(5, newer), newer, True)
        assert "Read-only file system" in (shelf.refusal() or "")
        assert shelf.get(newer.root) == newer.whole
        subprocess.run(["mount", "-o", "remount,rw", str(small_disk)], check=True)
        shelf.store()
        assert shelf.refusal() == ""
        local.bus.emit(noted("kept"))
    assert {held.version for held in Shelf(local.folder / "blobs", pytest.fail).whole()} == {4, 5}
    assert "events are not in" in capsys.readouterr().err
    assert noted("kept") in [*read_journal(local.folder / "journal.jsonl")]
