"""Leaving on a signal: what Ctrl-C, a service manager and a terminal that is closed send."""

import os
import pty
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
PROGRAM = """
import asyncio, fcntl, signal, sys, termios
from peers import errors
from peers.runtime import signals

proof, begun = sys.argv[1:]
for number in (signal.SIGHUP, signal.SIGINT):  # as a terminal begins it, whatever these tests were started by
    signal.signal(number, signal.SIG_DFL)
if begun == "under nohup":
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
elif begun == "in a terminal of its own":
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)

async def program(leaving):
    left = asyncio.Event()
    leaving.leave = left.set
    print("here", flush=True)
    await left.wait()
    open(proof, "w").write("left in order")

sys.exit(errors.guarded(lambda: signals.run_until_signalled(program)))
"""


def started(proof: Path, begun: str = "", **more: Any) -> subprocess.Popen[bytes]:
    """The program, once it listens to signals."""
    words = [sys.executable, "-c", PROGRAM, str(proof), begun]
    ran = subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE, **more)
    assert ran.stdout is not None and ran.stdout.readline() == b"here\n"
    return ran


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_each_signal_that_ends_programs_lets_this_one_leave_in_order(
    tmp_path: Path, number: signal.Signals
) -> None:
    ran = started(tmp_path / "proof", stderr=subprocess.DEVNULL)
    ran.send_signal(number)
    assert ran.wait(20) == 128 + number
    assert (tmp_path / "proof").read_text() == "left in order"


def test_a_program_whose_terminal_is_closed_leaves_in_order(tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    ran = started(
        tmp_path / "proof", "in a terminal of its own", stdin=theirs, stderr=theirs, start_new_session=True
    )
    os.close(theirs)
    os.close(ours)
    assert ran.wait(20) == 128 + signal.SIGHUP
    assert (tmp_path / "proof").read_text() == "left in order"


def test_a_program_under_nohup_outlives_its_terminal(tmp_path: Path) -> None:
    ran = started(tmp_path / "proof", "under nohup", stderr=subprocess.DEVNULL)
    ran.send_signal(signal.SIGHUP)
    ran.send_signal(signal.SIGTERM)
    assert ran.wait(20) == 128 + signal.SIGTERM


def test_a_program_may_open_as_many_files_as_the_hard_limit_lets_it() -> None:
    code = "import resource; from peers.runtime import signals; signals.allow_files()"
    ends = "print(resource.getrlimit(resource.RLIMIT_NOFILE))"
    for soft, hard, has in ((100, 300, 300), (200, 200, 200)):
        words = ["sh", "-c", f'ulimit -Sn {soft} && ulimit -Hn {hard} && exec "$@"', "sh"]
        words += [sys.executable, "-c", f"{code}; {ends}"]
        ran = subprocess.run(words, cwd=ROOT, capture_output=True, check=False)
        assert ran.stdout.decode().split() == [f"({has},", f"{hard})"], ran
