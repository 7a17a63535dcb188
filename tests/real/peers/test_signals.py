"""Leaving on a signal: what Ctrl-C, a service manager and a terminal that is closed send."""

import asyncio
import errno
import os
import pty
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from places import ROOT

from peers.errors import Interrupted
from peers.runtime import signals
from peers.runtime.signals import FILES, PARENT, SignalHandler

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


# --- in this process ----------------------------------------------------------------------------------------


@pytest.fixture
def _handlers() -> Iterator[None]:
    """Signals as a terminal begins a program, whatever these tests were started by; then as before."""
    begun = {
        signal.SIGTERM: signal.SIG_DFL,
        signal.SIGHUP: signal.SIG_DFL,
        signal.SIGINT: signal.default_int_handler,
    }
    before = {number: signal.signal(number, handler) for number, handler in begun.items()}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def send(*numbers: signal.Signals) -> None:
    for number in numbers:
        os.kill(os.getpid(), number)


@pytest.mark.usefixtures("_handlers")
def test_a_second_signal_ends_a_program_that_is_still_leaving(capsys: pytest.CaptureFixture[str]) -> None:
    asked = list[str]()

    async def program(leaving: SignalHandler) -> None:
        leaving.leave = lambda: asked.append("leave")
        send(signal.SIGTERM)
        await asyncio.sleep(0.05)
        assert asked == ["leave"]
        send(signal.SIGHUP)
        await asyncio.sleep(20.0)

    with pytest.raises(Interrupted) as ended:
        signals.run_until_signalled(program)
    assert (ended.value.signal, asked) == (signal.SIGHUP, ["leave"])
    assert capsys.readouterr().err == "leaving: finishing what is at hand (again to leave now)\n"


@pytest.mark.usefixtures("_handlers")
def test_a_signal_ends_a_program_at_once_that_has_nothing_to_finish(
    capsys: pytest.CaptureFixture[str],
) -> None:
    async def program(_: SignalHandler) -> None:
        send(signal.SIGTERM)
        await asyncio.sleep(20.0)

    with pytest.raises(Interrupted) as ended:
        signals.run_until_signalled(program)
    assert ended.value.signal == signal.SIGTERM and not capsys.readouterr().err


@pytest.mark.usefixtures("_handlers")
def test_a_program_that_no_signal_ends_says_how_it_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    allowed = list[str]()
    monkeypatch.setattr(signals, "allow_files", lambda: allowed.append("files"))

    async def cancelled(_: SignalHandler) -> None:
        raise asyncio.CancelledError

    async def ended(_: SignalHandler) -> None:
        assert allowed == ["files"]

    assert signals.run_until_signalled(ended) == 0
    with pytest.raises(asyncio.CancelledError):
        signals.run_until_signalled(cancelled)


@pytest.mark.usefixtures("_handlers")
def test_a_child_ends_with_its_parent_also_with_one_that_died_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked, begun = list[int](), list[bool]()
    monkeypatch.setattr(signals, "die_with_parent", asked.append)

    async def program(_: SignalHandler) -> None:
        begun.append(True)

    monkeypatch.setenv(PARENT, str(os.getppid()))
    assert signals.run_until_signalled(program) == 0
    monkeypatch.setenv(PARENT, str(os.getpid()))
    with pytest.raises(Interrupted):
        signals.run_until_signalled(program)
    assert (asked, begun) == ([signal.SIGTERM] * 2, [True])


@pytest.mark.usefixtures("_handlers")
def test_what_started_processes_is_interrupted_by_each_signal_that_asks_it_to_leave() -> None:
    signals.interrupt()
    for number in (signal.SIGTERM, signal.SIGHUP):
        with pytest.raises(Interrupted) as ended:
            send(number)
        assert ended.value.signal == number
    with pytest.raises(KeyboardInterrupt):
        send(signal.SIGINT)


ALL = resource.RLIM_INFINITY


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ((1024, 1 << 20), (FILES, 1 << 20)),
        ((1024, 4096), (4096, 4096)),
        ((1024, ALL), (FILES, ALL)),
        ((1 << 17, 1 << 20), None),
        ((4096, 4096), None),
        ((ALL, ALL), None),
    ],
)
def test_files_are_allowed_up_to_the_hard_limit_and_never_fewer_than_before(
    before: tuple[int, int], after: tuple[int, int] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = list[tuple[int, int]]()
    monkeypatch.setattr(resource, "getrlimit", lambda _: before)
    monkeypatch.setattr(resource, "setrlimit", lambda _, limits: asked.append(limits))
    signals.allow_files()
    assert asked == ([] if after is None else [after])


def test_a_system_that_refuses_more_files_ends_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(resource, "getrlimit", lambda _: (1024, 4096))
    monkeypatch.setattr(resource, "setrlimit", refuse)
    signals.allow_files()
