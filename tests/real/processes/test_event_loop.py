"""Child processes of the event loop of our programs."""

import _imp
import asyncio
import signal
import sys
import threading
from collections.abc import Coroutine
from typing import Any

import pytest

from swarm.processes.event_loop import EventLoop


def run(main: Coroutine[Any, Any, None]) -> None:
    with asyncio.Runner(loop_factory=EventLoop) as runner:
        runner.run(main)


def python(code: str, **pipes: Any) -> Coroutine[Any, Any, asyncio.subprocess.Process]:
    return asyncio.create_subprocess_exec(sys.executable, "-I", "-S", "-c", code, **pipes)


@pytest.mark.parametrize("seconds", [-1.0, 0.0, 0.0004, 0.01])
def test_a_timer_knows_its_time_though_that_has_come(seconds: float) -> None:
    async def main() -> None:
        loop, called = asyncio.get_running_loop(), asyncio.Event()
        now = loop.time()
        timer = loop.call_at(now + seconds, called.set)
        assert now + seconds - 0.001 <= timer.when() <= loop.time() + 0.02
        await called.wait()

    run(main())


def test_a_child_is_written_to_read_and_waited_for() -> None:
    async def main() -> None:
        pipe = asyncio.subprocess.PIPE
        child = await python(
            "import sys; print(sys.stdin.read()[::-1]); sys.exit(7)", stdin=pipe, stdout=pipe
        )
        said, _ = await child.communicate(b"swarm")
        assert said.strip() == b"mraws" and await child.wait() == child.returncode == 7

    run(main())


def test_a_signal_ends_it() -> None:
    async def main() -> None:
        child = await python(
            "import time; print(1, flush=True); time.sleep(99)", stdout=asyncio.subprocess.PIPE
        )
        assert child.stdout is not None and await child.stdout.readline() == b"1\n"
        child.terminate()
        assert await child.wait() == -signal.SIGTERM and await child.stdout.read() == b""

    run(main())


def test_a_program_that_is_not_there_is_an_error() -> None:
    async def main() -> None:
        with pytest.raises(FileNotFoundError):
            await asyncio.create_subprocess_exec("/nowhere/at/all")

    run(main())


def test_it_starts_while_a_thread_imports() -> None:
    imports, started = threading.Event(), threading.Event()

    def thread() -> bool:
        _imp.acquire_lock()
        imports.set()
        waited = started.wait(20)
        _imp.release_lock()
        return waited

    async def main() -> None:
        importing = loop.run_in_executor(None, thread)
        assert imports.wait(20)
        child = await asyncio.create_subprocess_exec("true")
        started.set()
        assert await importing, "the child waits for the import"
        assert await child.wait() == 0

    with asyncio.Runner(loop_factory=EventLoop) as runner:
        loop = runner.get_loop()
        runner.run(main())
