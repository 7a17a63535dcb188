"""Questions to p2pd go over connections that are kept, and each gets its own answer."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from swarm.membership.identity import open_key
from swarm.net.libp2p.p2pd import KEPT, Daemon
from swarm.net.ports import Unreachable
from swarm.processes.event_loop import EventLoop
from swarm.settings.config import Listen
from swarm.types import PeerId

NOBODY = PeerId("12D3KooWA5zURCFT5rHvHvTu6cEz5QfkFmr3XKRsNyBdkmCJMWPE")


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The paths to which connections are opened."""
    opens, paths = asyncio.open_unix_connection, list[str]()

    async def told(path: str, **options: Any) -> Any:
        paths.append(path)
        return await opens(path, **options)

    monkeypatch.setattr(asyncio, "open_unix_connection", told)
    return paths


def with_daemon(folder: Path, body: Callable[[Daemon], Awaitable[None]]) -> None:
    async def main() -> None:
        key = folder / "key"
        daemon = await Daemon.launch(key, open_key(key).me, Listen(host="127.0.0.1", dial_only=True), 0)
        try:
            await body(daemon)
        finally:
            await daemon.stop()

    with asyncio.Runner(loop_factory=EventLoop) as runner:
        runner.run(main())


def test_questions_one_after_the_other_share_a_connection(tmp_path: Path, opened: list[str]) -> None:
    async def body(daemon: Daemon) -> None:
        opened.clear()
        for number in range(20):
            assert await daemon.connected() == frozenset()
            await daemon.publish("topic", str(number).encode())
        assert len(opened) == 1

    with_daemon(tmp_path, body)


def test_whether_p2pd_is_well_is_asked_on_a_new_connection(tmp_path: Path, opened: list[str]) -> None:
    async def body(daemon: Daemon) -> None:
        await daemon.connected()
        opened.clear()
        await daemon.identify()
        assert len(opened) == 1

    with_daemon(tmp_path, body)


def test_questions_at_once_have_one_each_and_some_are_kept(tmp_path: Path, opened: list[str]) -> None:
    async def body(daemon: Daemon) -> None:
        opened.clear()
        at_once = KEPT + 6
        for _ in range(2):
            assert (
                await asyncio.gather(*(daemon.connected() for _ in range(at_once))) == [frozenset()] * at_once
            )
        assert len(opened) == at_once + at_once - KEPT

    with_daemon(tmp_path, body)


def is_stopped(pid: int) -> bool:
    """Each thread: one that runs when the signal is sent may answer before it stops."""
    stats = (thread.read_text() for thread in Path(f"/proc/{pid}/task").glob("*/stat"))
    return {stat.rpartition(")")[2].split()[0] for stat in stats} == {"T"}


def test_the_answer_to_a_question_that_was_given_up_is_not_the_next_ones(tmp_path: Path) -> None:
    async def body(daemon: Daemon) -> None:
        where = await daemon.identify()
        os.kill(daemon.pid, signal.SIGSTOP)
        while not is_stopped(daemon.pid):
            await asyncio.sleep(0.01)
        asked = [asyncio.create_task(daemon.publish("topic", b"given up")) for _ in range(3)]
        await asyncio.wait(asked, timeout=0.2)
        for task in asked:
            task.cancel()
        assert all(
            isinstance(end, asyncio.CancelledError)
            for end in await asyncio.gather(*asked, return_exceptions=True)
        )
        os.kill(daemon.pid, signal.SIGCONT)
        for _ in range(5):
            assert await daemon.identify() == where
            assert await daemon.connected() == frozenset()

    with_daemon(tmp_path, body)


def test_after_a_refusal_the_next_question_is_answered(tmp_path: Path) -> None:
    async def body(daemon: Daemon) -> None:
        for _ in range(3):
            with pytest.raises(Unreachable):
                await daemon.connect(NOBODY, [], 5.0)
            assert await daemon.connected() == frozenset()

    with_daemon(tmp_path, body)


def test_of_a_p2pd_that_died_nothing_is_kept(tmp_path: Path) -> None:
    async def body(daemon: Daemon) -> None:
        await daemon.connected()
        os.kill(daemon.pid, signal.SIGKILL)
        for _ in range(2):
            with pytest.raises(Unreachable, match="p2pd of this peer is gone"):
                await daemon.connected()
        assert not daemon._kept

    with_daemon(tmp_path, body)
