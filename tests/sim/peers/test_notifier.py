"""Waits of a host's coroutines: all end with news, each at its own time without."""

from __future__ import annotations

import asyncio

import pytest

from peers.runtime.notifier import Notifier
from swarm.sim.clock import Deadlock, run


def test_news_end_all_waits_and_each_wait_ends_at_its_own_time() -> None:
    async def main() -> dict[str, float]:
        changes, loop, told = Notifier(), asyncio.get_running_loop(), dict[str, float]()

        async def wait(name: str, seconds: float) -> None:
            await changes.wait(seconds)
            told[name] = loop.time()

        async with asyncio.TaskGroup() as group:
            for name, seconds in (("late", 9.0), ("early", 1.0), ("later", 99.0), ("now", 0.0)):
                group.create_task(wait(name, seconds))
            await asyncio.sleep(20)
            changes.wake()
        return told

    assert run(main()) == {"now": 0.0, "early": 1.0, "late": 9.0, "later": 20.0}


def test_a_wait_lasts_as_long_as_its_own_time_however_often_others_ended() -> None:
    async def main() -> float:
        changes, loop = Notifier(), asyncio.get_running_loop()
        for _ in range(10):
            loop.call_later(0.1, changes.wake)
            await changes.wait(5.0)
        since = loop.time()
        await changes.wait(5.0)
        return loop.time() - since

    assert run(main()) == pytest.approx(5.0)


def test_a_wait_that_is_cancelled_is_forgotten() -> None:
    async def main() -> int:
        changes = Notifier()
        waits = [asyncio.create_task(changes.wait(5.0)) for _ in range(3)]
        await asyncio.sleep(1)
        waits[1].cancel()
        changes.wake()
        done = await asyncio.gather(*waits, return_exceptions=True)
        assert [isinstance(one, asyncio.CancelledError) for one in done] == [False, True, False]
        await asyncio.sleep(10)
        return len(changes._waiting)

    assert run(main()) == 0


def test_a_wait_for_news_alone_sets_no_timer() -> None:
    with pytest.raises(Deadlock, match="no timer is set"):
        run(Notifier().wait())
