"""Files that matter: whole or as they were, and on the disk before anybody relies on them."""

from __future__ import annotations

import errno
import fcntl
import gc
import multiprocessing
import os
import stat
import time
from functools import partial
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from swarm.processes.process import Child
from swarm.storage.durable import adding_lines, write_durably

SMALL, LARGE = b"small", b"large" * 100_000


def test_a_file_is_replaced_and_nothing_else_stays_in_its_folder(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "er" / "file"
    for content in (LARGE, SMALL):
        write_durably(path, content)
        assert path.read_bytes() == content and os.listdir(path.parent) == ["file"]


def test_what_a_killed_writer_left_does_not_get_into_the_file(tmp_path: Path) -> None:
    (tmp_path / "file.new").write_bytes(LARGE)
    write_durably(tmp_path / "file", SMALL)
    assert (tmp_path / "file").read_bytes() == SMALL


def _written_again(path: Path, times: int, failed: list[str]) -> None:
    for _ in range(times):
        try:
            write_durably(path, LARGE)
        except OSError as error:
            failed.append(str(error))


@pytest.mark.parametrize("kind", [multiprocessing.get_context("spawn").Process, Thread])
def test_two_writers_of_one_file_do_not_fail_each_other(tmp_path: Path, kind: Any) -> None:
    failed: Any = multiprocessing.get_context("spawn").Manager().list()
    writers = [kind(target=_written_again, args=(tmp_path / "file", 50, failed)) for _ in range(2)]
    write_durably(tmp_path / "file", LARGE)
    for writer in writers:
        writer.start()
    while any(writer.is_alive() for writer in writers):
        assert (tmp_path / "file").read_bytes() == LARGE
    assert not [*failed] and os.listdir(tmp_path) == ["file"]


def test_a_file_system_without_locks_takes_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def flock(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", flock)
    write_durably(tmp_path / "file", SMALL)
    assert (tmp_path / "file").read_bytes() == SMALL


def test_a_secret_can_be_read_by_its_owner_alone_while_it_is_being_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    modes: list[int] = []
    fsync = os.fsync

    def watched(descriptor: int) -> None:
        modes.append(stat.S_IMODE(os.fstat(descriptor).st_mode))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", watched)
    write_durably(tmp_path / "secret", LARGE, mode=0o600)
    assert modes[0] == stat.S_IMODE((tmp_path / "secret").stat().st_mode) == 0o600


def test_a_full_disk_leaves_the_old_content_and_names_the_file(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_durably(path, SMALL)
    (tmp_path / "file.new").symlink_to("/dev/full")
    with pytest.raises(OSError, match="No space left") as caught:
        write_durably(path, LARGE)
    assert caught.value.errno == errno.ENOSPC and caught.value.filename == str(path)
    assert path.read_bytes() == SMALL and os.listdir(tmp_path) == ["file"]


def test_an_error_that_names_its_file_keeps_that_name(tmp_path: Path) -> None:
    (tmp_path / "file.new").symlink_to(tmp_path / "gone" / "file")
    with pytest.raises(FileNotFoundError) as caught:
        write_durably(tmp_path / "file", LARGE)
    assert caught.value.filename == str(tmp_path / "file.new")


def test_the_content_is_on_the_disk_before_its_name_and_its_name_before_anybody_relies_on_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, synced = tmp_path / "file", list[tuple[str, bytes]]()
    path.write_bytes(LARGE)
    fsync = os.fsync

    def watched(descriptor: int) -> None:
        what = Path(f"/proc/self/fd/{descriptor}").readlink()
        synced.append((what.name, what.read_bytes() if what.is_file() else path.read_bytes()))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", watched)
    write_durably(path, SMALL)
    assert synced == [("file.new", SMALL), (tmp_path.name, SMALL)]


def test_a_file_that_cannot_be_made_says_why_and_nothing_stays_open() -> None:
    gc.collect()  # files of earlier tests are closed now, and not meanwhile
    before = os.listdir("/proc/self/fd")
    with pytest.raises(OSError, match=r"^\[Errno") as caught:
        write_durably(Path("/sys/file"), LARGE)
    assert caught.value.errno in (errno.EACCES, errno.EPERM, errno.EROFS)
    assert caught.value.filename == "/sys/file.new"
    assert os.listdir("/proc/self/fd") == before


def test_a_file_that_was_written_is_closed_and_so_is_its_folder(tmp_path: Path) -> None:
    gc.collect()  # files of earlier tests are closed now, and not meanwhile
    before = os.listdir("/proc/self/fd")
    write_durably(tmp_path / "file", LARGE)
    assert os.listdir("/proc/self/fd") == before


def test_a_child_that_was_forked_while_lines_were_added_keeps_no_other_writer_out(tmp_path: Path) -> None:
    with adding_lines(tmp_path / "list") as add:
        child = Child(partial(time.sleep, 60))
        add(b"one")
    with open(tmp_path / "list", "rb") as other:
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
    assert child.alive
    child.end()
