"""A child that is a fork: it shares what its parent has mapped, is rid of the rest, and ends with it."""

from __future__ import annotations

import gc
import mmap
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil  # type: ignore[import-untyped]
import pytest
from process_tree import child_of_a_killed_parent, ended, processes

from swarm.processes.process import Child, Ended, Pipe

Fork = Callable[[Callable[[], object]], Child]


@pytest.fixture
def fork() -> Iterator[Fork]:
    made: list[Child] = []

    def made_of(main: Callable[[], object]) -> Child:
        made.append(Child(main))
        return made[-1]

    yield made_of
    for child in made:
        child.end()


def echo() -> None:
    pipe = Pipe()
    while (frame := pipe.receive()) is not None:
        pipe.send(frame)


def test_frames_go_there_and_back_and_mapped_memory_is_shared(fork: Fork) -> None:
    memory = mmap.mmap(-1, 4)

    def main() -> None:
        memory[:] = b"here"
        echo()

    assert fork(main).ask(bytes(1 << 20), 60.0) == bytes(1 << 20)
    assert memory[:] == b"here"


def test_a_function_that_raises_ends_its_process_with_a_traceback(fork: Fork) -> None:
    def main() -> None:
        raise MemoryError("no room")

    with pytest.raises(Ended, match=r"exit code 1, after printing: .* / MemoryError: no room$"):
        fork(main).receive(60.0)


def test_a_function_that_returns_ends_its_process(fork: Fork) -> None:
    with pytest.raises(Ended, match=r"^ended its process with exit code 0$"):
        fork(lambda: None).receive(60.0)


def test_prints_of_libraries_below_python_are_kept(fork: Fork) -> None:
    def main() -> None:
        pipe = Pipe()
        print("said")
        os.write(1, b"raw\n")
        pipe.send(b"done")
        echo()

    child = fork(main)
    assert child.receive(60.0) == b"done" and child.output().splitlines() == ["said", "raw"]


def test_the_end_takes_all_that_a_fork_started_along(fork: Fork) -> None:
    def main() -> None:
        below = os.fork() or time.sleep(600)
        Pipe().send(str(below).encode())
        time.sleep(600)

    child = fork(main)
    below = int(child.receive(60.0))
    child.end()
    assert ended(child.pid, below)


def test_one_that_has_only_just_begun_is_ended(fork: Fork) -> None:
    for _ in range(20):
        child = fork(lambda: time.sleep(600))
        child.kill()
        assert child.pid not in processes()


def test_a_fork_sees_the_end_of_its_input(fork: Fork, tmp_path: Path) -> None:
    def main() -> None:
        echo()
        (tmp_path / "left").touch()

    fork(main).end(grace=60.0)
    assert (tmp_path / "left").exists()


def test_a_connection_that_the_parent_closes_is_closed(fork: Fork) -> None:
    mine, other = socket.socketpair()
    assert fork(echo).ask(b"", 60.0) == b""
    # the fork, which has its copies closed by now
    mine.close()
    other.settimeout(60.0)
    assert other.recv(1) == b""
    other.close()


def test_a_fork_finalizes_none_of_its_parents_objects(fork: Fork, tmp_path: Path) -> None:
    class Cycle:
        def __init__(self) -> None:
            self.me, self.owner = self, os.getpid()

        def __del__(self) -> None:
            (tmp_path / ("parent" if os.getpid() == self.owner else "fork")).touch()

    def main() -> None:
        gc.collect()
        echo()

    gc.disable()
    try:
        Cycle()
        assert fork(main).ask(b"", 60.0) == b""
    finally:
        gc.enable()
    gc.collect()
    assert [path.name for path in tmp_path.iterdir()] == ["parent"]


def test_memory_of_objects_stays_shared_when_the_parent_collects_garbage(fork: Fork) -> None:
    kept = [[number] for number in range(300_000)]
    child = fork(echo)
    child.send(b"here")
    assert child.receive(10.0) == b"here"

    def own() -> int:
        return int(psutil.Process(child.pid).memory_full_info().uss)

    before = own()
    gc.collect()
    assert own() - before < 10 * len(kept), "bytes, of 72 that each list takes"


def test_a_fork_outlives_the_thread_that_wanted_it(fork: Fork) -> None:
    made: list[Child] = []
    thread = threading.Thread(target=lambda: made.append(fork(echo)))
    thread.start()
    thread.join()
    # The kernel is told of the thread's end a moment after `join`.
    time.sleep(0.1)
    assert made[0].ask(b"still here", 60.0) == b"still here"


def test_a_fork_ends_with_a_parent_that_is_killed() -> None:
    child = child_of_a_killed_parent(
        "import time\nfrom swarm.processes.process import Child\n"
        "print(Child(lambda: time.sleep(600)).pid, flush=True)\ntime.sleep(600)"
    )
    assert ended(child)


def test_a_signal_to_a_fork_is_not_its_parents(fork: Fork) -> None:
    heard: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda *_: heard.append(1))
    try:
        child = fork(echo)
        assert child.ask(b"", 60.0) == b""
        os.kill(child.pid, signal.SIGTERM)
        with pytest.raises(Ended, match="signal SIGTERM"):
            child.receive(60.0)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert heard == []


SHOWN = """
import pathlib, sys
from swarm.processes.process import Child, Pipe
from swarm.processes.start import hide_argument

hide_argument(sys.argv[2])
hide_argument("nowhere")
mine = pathlib.Path("/proc/self/cmdline")
child = Child(lambda: Pipe().send(mine.read_bytes()))
print([mine.read_bytes().split(bytes(1))[-4:], child.receive(10.0).split(bytes(1))[-4:], sys.argv[1:]])
child.end()
"""


@pytest.mark.parametrize("secret", ["swarm1secret", "two\nlines", "kéy"])
def test_an_argument_that_is_hidden_is_in_no_command_line_of_the_process_and_its_forks(secret: str) -> None:
    words = ["join", secret, f"--renew={secret}"]
    said = subprocess.run([sys.executable, "-c", SHOWN, *words], capture_output=True, text=True, check=True)
    hidden = "*" * len(secret.encode())
    command = [text.encode() for text in ("join", hidden, f"--renew={hidden}", "")]
    assert said.stdout == f"{[command, command, ['join', hidden, f'--renew={hidden}']]}\n"
