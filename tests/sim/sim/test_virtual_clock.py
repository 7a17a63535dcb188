"""The loop of virtual time: its order, its timers, its end."""

from __future__ import annotations

import asyncio
import gc

import pytest

from swarm.sim.clock import CANCELLED, VirtualLoop, run


def test_timers_of_one_moment_run_in_the_order_in_which_they_were_set() -> None:
    told: list[int] = []

    async def main() -> None:
        loop = asyncio.get_running_loop()
        for number in range(100):
            loop.call_at(3.0, told.append, number)
        await asyncio.sleep(4)

    run(main())
    assert told == list(range(100))


def test_a_timer_runs_when_it_is_due_and_never_when_it_was_cancelled() -> None:
    told: list[float] = []

    async def main() -> None:
        loop = asyncio.get_running_loop()
        timers = [loop.call_later(seconds, lambda: told.append(loop.time())) for seconds in range(1, 1001)]
        for timer in timers[:500] + timers[501:]:
            timer.cancel()
        await asyncio.sleep(2000)

    run(main())
    assert told == [501]


def test_cancelled_timers_take_no_room() -> None:
    async def main() -> int:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        for _ in range(20 * CANCELLED):
            loop.call_later(300, print).cancel()
            await asyncio.sleep(0.001)
        return len(loop._timers)

    assert run(main()) < 3 * CANCELLED


def test_a_timer_that_is_cancelled_after_it_ran_counts_for_nothing() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        timer = loop.call_later(1, int)
        await asyncio.sleep(2)
        timer.cancel()
        assert loop._cancelled == 0

    run(main())


def test_an_exception_of_a_callback_is_told_and_the_loop_goes_on() -> None:
    told: list[str] = []

    async def main() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: told.append(repr(context["exception"])))
        loop.call_soon(int, "x")
        await asyncio.sleep(1)

    run(main())
    assert len(told) == 1 and "ValueError" in told[0]


def test_the_garbage_collector_is_as_before_after_a_run() -> None:
    before = gc.get_threshold()

    async def main() -> tuple[int, int, int]:
        return gc.get_threshold()

    assert run(main()) != before == gc.get_threshold()

    async def broken() -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        run(broken())
    assert gc.get_threshold() == before
