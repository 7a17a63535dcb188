"""A child that answers: frames, deadlines, how it ended and what it said, and that nothing of it is left."""

from __future__ import annotations

import asyncio
import os
import resource
import select
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from process_tree import child_of_a_killed_parent, ended

from swarm.processes import process
from swarm.processes.process import Child, ChildLost, Ended, Hung

ECHO = "while (frame := pipe.receive()) is not None: pipe.send(frame)"
PLENTY = 4 << 20
"""Bytes: far more than a pipe holds."""

Make = Callable[..., Child]


@pytest.fixture
def make() -> Iterator[Make]:
    made: list[Child] = []

    def made_of(code: str, limit: int = process.LARGEST) -> Child:
        head = "import os, sys, time, signal\nfrom swarm.processes.process import Pipe\npipe = Pipe()\n"
        made.append(Child([sys.executable, "-c", head + code], limit=limit))
        return made[-1]

    yield made_of
    for child in made:
        child.end()


def gone(pid: int) -> bool:
    return ended(pid, within=10.0)


def test_frames_of_any_size_go_there_and_back_in_order(make: Make) -> None:
    child = make(ECHO)
    frames = [b"", b"a", os.urandom(PLENTY)]
    for frame in frames:
        child.send(frame)
    assert [child.receive(60.0) for _ in frames] == frames


def test_a_stopped_child_and_a_full_pipe_do_not_hold_the_parent(make: Make) -> None:
    child = make(ECHO)
    assert child.ask(b"ready", 60.0) == b"ready"
    os.kill(child.pid, signal.SIGSTOP)
    with pytest.raises(Hung, match=r"^did not answer within 0.2 s$"):
        child.ask(bytes(PLENTY), 0.2)
    child.end()
    assert gone(child.pid)


def test_who_stood_still_itself_gives_its_children_the_time_that_was_left(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a machine that slept, or with all processes of a peer stopped: the child stood still, too."""
    child = make("pipe.receive(); time.sleep(0.3); pipe.send(b'done'); pipe.receive()")
    began, stood = time.monotonic(), 0.0
    right, select_ = time.monotonic, process.selectors.PollSelector.select

    def select_and_stand(self: process.selectors.PollSelector, seconds: float) -> object:
        nonlocal stood
        stood = 1000.0
        return select_(self, min(seconds, 0.05))

    monkeypatch.setattr(process.selectors.PollSelector, "select", select_and_stand)
    monkeypatch.setattr(process.time, "monotonic", lambda: right() + stood)
    assert child.ask(b"", 60.0) == b"done"
    with pytest.raises(Hung):
        child.receive(0.2)
    assert right() - began < 30.0


def test_a_child_that_goes_on_in_time_gets_the_rest_of_the_frame(make: Make) -> None:
    child = make(ECHO)
    assert child.ask(b"ready", 60.0) == b"ready"
    os.kill(child.pid, signal.SIGSTOP)
    child.send(bytes(PLENTY))
    os.kill(child.pid, signal.SIGCONT)
    assert child.receive(60.0) == bytes(PLENTY)


def test_one_that_dies_in_the_middle_of_a_frame_is_ended_and_not_waited_for(make: Make) -> None:
    child = make("pipe.receive(); os.write(pipe._out.fileno(), bytes([0, 0, 0, 9]) + b'half'); os._exit(3)")
    with pytest.raises(Ended, match=r"^ended its process with exit code 3$"):
        child.ask(b"", 60.0)


def test_what_it_sent_before_it_died_is_read_first(make: Make) -> None:
    child = make("pipe.send(b'last'); os.kill(os.getpid(), signal.SIGKILL)")
    assert child.receive(60.0) == b"last"
    with pytest.raises(Ended, match=r"^ended its process with signal SIGKILL$"):
        child.receive(60.0)


def test_one_that_dies_while_it_is_written_to_says_why(make: Make) -> None:
    child = make("raise MemoryError('no room')")
    with pytest.raises(Ended, match=r"exit code 1, after printing: .* / MemoryError: no room$"):
        child.ask(bytes(PLENTY), 60.0)


def test_prints_damage_no_frame_and_are_kept(make: Make) -> None:
    child = make(
        "print('said', flush=True); os.write(1, b'raw\\n')\nos.system('echo below')\npipe.send(b'fine')\n"
        "assert sys.stdin.read() == ''; pipe.send(b'and nothing to read')"
    )
    assert [child.receive(60.0) for _ in range(2)] == [b"fine", b"and nothing to read"]
    assert child.output().splitlines() == ["said", "raw", "below"]


def test_more_prints_than_a_pipe_holds_do_not_stop_it(make: Make) -> None:
    child = make("print('x' * 10_000_000, flush=True); print('end', flush=True); pipe.send(b'done')")
    assert child.receive(60.0) == b"done"
    assert child.output().endswith("x\nend\n") and len(child.output()) == process.TAIL


def test_one_that_prints_for_ever_is_hung_at_the_deadline(make: Make) -> None:
    child = make("pipe.send(b'ready')\nwhile True: print('x' * 100_000)")
    assert child.receive(60.0) == b"ready"
    with pytest.raises(Hung):
        child.receive(0.5)


def test_a_frame_above_the_limit_is_refused_before_it_has_come(make: Make) -> None:
    child = make("pipe.send(bytes(100)); pipe.send(bytes(101)); time.sleep(600)", limit=100)
    assert child.receive(60.0) == bytes(100)
    with pytest.raises(ChildLost, match=r"^answered with \d+ bytes, the limit is 100$"):
        child.receive(60.0)
    head = make("os.write(pipe._out.fileno(), b'\\xff' * 4); time.sleep(600)", limit=100)
    with pytest.raises(ChildLost, match="the limit is 100"):
        head.receive(60.0)


def test_a_dead_child_is_noticed_also_when_what_it_started_holds_its_pipes(make: Make) -> None:
    child = make("if os.fork():\n    pipe.send(b'born')\n    os._exit(5)\ntime.sleep(600)")
    assert child.receive(60.0) == b"born"
    with pytest.raises(Ended, match="exit code 5"):
        child.receive(60.0)


def test_the_end_takes_all_that_it_started_along(make: Make) -> None:
    child = make(
        "below = os.fork()\nif not below:\n    time.sleep(600)\n"
        "pipe.send(str(below).encode()); time.sleep(600)"
    )
    below = int(child.receive(60.0))
    child.end()
    assert gone(child.pid) and gone(below)


def test_one_that_is_given_time_ends_by_itself(make: Make, tmp_path: Path) -> None:
    child = make(f"while pipe.receive() is not None: pass\nopen('{tmp_path}/left', 'w').close()")
    child.end(grace=60.0)
    assert (tmp_path / "left").exists()


def test_killing_ends_a_wait_of_another_thread(make: Make) -> None:
    child = make(ECHO)
    child.ask(b"ready", 60.0)
    threading.Timer(0.1, child.kill).start()
    with pytest.raises(Ended, match="signal SIGKILL"):
        child.receive(60.0)


def test_a_child_outlives_the_thread_that_made_it(make: Make) -> None:
    made: list[Child] = []

    def start() -> None:
        made.append(make(f"from swarm.processes.start import die_with_parent; die_with_parent()\n{ECHO}"))
        made[0].ask(b"ready", 60.0)

    thread = threading.Thread(target=start)
    thread.start()
    thread.join()
    # The kernel is told of the thread's end a moment after `join`.
    time.sleep(0.1)
    assert made[0].ask(b"still here", 60.0) == b"still here"


@pytest.mark.parametrize("code", ["pipe.listen()", "die_with_parent()"])
def test_a_child_ends_with_a_parent_that_is_killed(code: str) -> None:
    head = (
        "import os, sys, time; from swarm.processes.process import Pipe; pipe = Pipe(); "
        "from swarm.processes.start import die_with_parent; "
    )
    wait = "; pipe.send(b''); time.sleep(600)"
    child = child_of_a_killed_parent(
        "import sys, time\nfrom swarm.processes.process import Child\n"
        f"child = Child([sys.executable, '-c', {head + code + wait!r}])\n"
        "child.receive(60.0); print(child.pid, flush=True); time.sleep(600)"
    )
    assert gone(child)


def test_the_end_of_the_parent_is_told_first(make: Make, tmp_path: Path) -> None:
    child = make(
        f"pipe.listen(lambda: open('{tmp_path}/told', 'w').close()); pipe.send(b''); time.sleep(600)"
    )
    child.receive(60.0)
    child._pipes[0].close()
    with pytest.raises(Ended, match="signal SIGKILL"):
        child.receive(60.0)
    assert (tmp_path / "told").exists()


def test_a_loop_goes_on_while_a_stopped_child_takes_no_more(make: Make) -> None:
    child = make(ECHO)
    assert child.ask(b"ready", 60.0) == b"ready"

    async def ask() -> bytes:
        os.kill(child.pid, signal.SIGSTOP)
        child.send(bytes(PLENTY))
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(child.awaited(), 0.2)
        os.kill(child.pid, signal.SIGCONT)
        return await child.awaited()

    assert asyncio.run(ask()) == bytes(PLENTY)


@pytest.mark.parametrize("turns", range(8))
def test_a_wait_is_cancelled_also_while_a_piece_of_a_frame_comes(make: Make, turns: int) -> None:
    child = make("os.write(pipe._out.fileno(), bytes(2)); time.sleep(600)")

    async def cancel() -> bool:
        waiting = asyncio.ensure_future(child.awaited())
        await asyncio.sleep(0)
        select.select([child.fileno()], [], [], 60.0)  # the loop does not see it yet
        for _ in range(turns):
            await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.wait({waiting}, timeout=2.0)
        return waiting.cancelled()

    assert asyncio.run(cancel())


def test_what_is_sent_while_a_loop_waits_is_answered(make: Make) -> None:
    child = make(ECHO)

    async def ask() -> bytes:
        answer = asyncio.ensure_future(child.awaited())
        await asyncio.sleep(0)
        child.send(bytes(PLENTY))
        return await answer

    assert asyncio.run(ask()) == bytes(PLENTY)


def test_a_loop_hears_how_a_child_ended(make: Make) -> None:
    with pytest.raises(Ended, match=r"^ended its process with exit code 1, after printing: no more$"):
        asyncio.run(make("sys.exit('no more')").awaited())


CLOSES = "os.close(pipe._out.fileno()); time.sleep(600)"


def test_one_that_only_closes_its_end_counts_as_ended(make: Make) -> None:
    with pytest.raises(Ended, match=r"^closed its end of the pipe$"):
        make(CLOSES).receive(60.0)


def test_a_loop_goes_on_until_one_that_closed_its_end_counts_as_ended(make: Make) -> None:
    turns = 0

    async def turn() -> None:
        nonlocal turns
        while True:
            turns += child.look != process.LOOK
            await asyncio.sleep(0.01)

    async def ask() -> None:
        turning = asyncio.create_task(turn())
        with pytest.raises(Ended, match=r"^closed its end of the pipe$"):
            await child.awaited()
        turning.cancel()

    child = make(CLOSES)
    asyncio.run(ask())
    assert turns > 1, "between the end of the pipe and the verdict"


def test_prints_are_echoed_where_that_is_asked_for(capfd: pytest.CaptureFixture[str]) -> None:
    child = Child([sys.executable, "-c", "raise SystemExit('and clear')"], echo=True)
    with pytest.raises(Ended, match=r"after printing: and clear$"):
        child.receive(60.0)
    child.end()
    assert capfd.readouterr().err == "and clear\n"


def test_the_first_that_is_ready_is_told_of_several(make: Make) -> None:
    slow, fast = make(ECHO), make(f"pipe.send(b'here')\n{ECHO}")
    assert process.wait([slow, fast], time.monotonic() + 60.0) == [fast] and fast.take() == b"here"
    assert process.wait([slow, fast], time.monotonic()) == []


def test_one_thread_each_unless_the_user_says_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    assert process.environment()["OMP_NUM_THREADS"] == "1"
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    assert process.environment()["OMP_NUM_THREADS"] == "7"
    assert process.environment({"OMP_NUM_THREADS": "3"})["OMP_NUM_THREADS"] == "3"
    assert "PATH" not in process.environment(inherited={})


def test_a_wait_needs_no_descriptor_of_its_own(make: Make) -> None:
    child = make(ECHO)
    assert child.ask(b"one", 30.0) == b"one"
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    with open(os.devnull) as taken:
        resource.setrlimit(resource.RLIMIT_NOFILE, (taken.fileno(), before[1]))
        try:
            assert child.ask(b"two", 30.0) == b"two"
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, before)
