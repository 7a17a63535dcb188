"""What a command does when its reader has gone: one that is only read ends, one that works works on."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TextIO

import pytest
from places import ROOT
from rich.table import Table

from peers.commands.runs.up import Children
from peers.console import Listing, optional_console
from peers.errors import guarded
from swarm.settings.config import Config


@pytest.fixture
def unread() -> Iterator[TextIO]:
    """A pipe whose reader has gone."""
    reader, writer = os.pipe()
    os.close(reader)
    stream = open(writer, "w")  # noqa: SIM115 (closed below)
    yield stream
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
    stream.close()


def refusing(number: int) -> Callable[[str], int]:
    def write(text: str) -> int:
        raise OSError(number, os.strerror(number))

    return write


def test_a_command_that_is_only_read_ends_well_when_its_reader_has(
    unread: TextIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdout", unread)

    def program() -> int:
        Listing().print("a line")
        raise AssertionError("it goes on")

    assert guarded(program) == 0


def test_the_commands_promise_holds_for_a_whole_process(unread: TextIO) -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "peers.cli", "task", "try", "sorting", "-n", "1"],
        cwd=ROOT,
        stdout=unread,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    assert ended.returncode == 0 and "Traceback" not in ended.stderr, ended


def test_a_swarm_goes_on_when_nobody_reads_its_lines(
    unread: TextIO, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stderr", unread)
    console = Children(tmp_path, Config()).console
    for _ in range(3):
        console.print("a line")


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO])
def test_a_full_disk_below_its_log_and_a_closed_terminal_do_not_end_it_either(
    number: int, unread: TextIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Refusing:
        write = staticmethod(refusing(number))
        encoding, flush, fileno = "utf-8", unread.flush, unread.fileno

    monkeypatch.setattr(sys, "stderr", Refusing())
    optional_console("stderr").print("a line")


def test_what_is_read_is_printed_as_before(capsys: pytest.CaptureFixture[str]) -> None:
    Listing().print("one")
    optional_console("stdout").print("two")
    assert capsys.readouterr().out == "one\ntwo\n"


def test_lines_of_tables_do_not_end_with_blanks(capsys: pytest.CaptureFixture[str]) -> None:
    table = Table(box=None)
    for row in ("a long word", "one"):
        table.add_row(row, "")
    Listing().print(table)
    optional_console("stdout", width=240).print(table)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 6 and lines == [line.rstrip() for line in lines]
