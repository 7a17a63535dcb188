"""Limits of a peer's line, in virtual time: never more than the rate, never less where somebody waits, and
what must not wait goes first."""

from __future__ import annotations

import asyncio
import math
import os
import time
from collections.abc import Callable

import pytest

from swarm.net.rate import BURST, MOST, PATIENCE, UNLIMITED, RateLimit, RateLimits
from swarm.settings.config import Limits
from swarm.sim.clock import run

RATE = 1e6


def now() -> float:
    return asyncio.get_running_loop().time()


async def send(limit: RateLimit, size: int, said: Callable[[int], None] = lambda size: None) -> float:
    """-> when the last piece may go."""
    while size > 0:
        piece = min(size, limit.piece)
        await limit.wait(piece)
        said(piece)
        size -= piece
    return now()


@pytest.mark.parametrize("rate", [62_500.0, RATE, 125e6])
def test_bulk_keeps_to_the_rate(rate: float) -> None:
    async def main() -> float:
        limit = RateLimit(rate)
        return max(await asyncio.gather(*(send(limit, int(rate)) for _ in range(10))))

    assert run(main()) == pytest.approx(10 - BURST, abs=0.1)


def test_a_line_that_was_idle_for_long_sends_no_more_than_a_burst_at_once() -> None:
    async def main() -> float:
        limit = RateLimit(RATE)
        await send(limit, int(RATE))
        await asyncio.sleep(3600)
        began = now()
        return await send(limit, int(RATE)) - began

    assert run(main()) == pytest.approx(1 - BURST, abs=0.03)


def test_streams_share_alike() -> None:
    async def main() -> list[float]:
        limit = RateLimit(RATE)
        return await asyncio.gather(*(send(limit, int(RATE)) for _ in range(4)))

    ends = run(main())
    assert max(ends) == pytest.approx(4 - BURST, abs=0.03)
    assert min(ends) > 3.5, "one after the other they end after 1, 2, 3 and 4 s"


def test_what_must_not_wait_does_not_and_bulk_makes_room_for_it() -> None:
    async def main() -> tuple[float, float]:
        limit = RateLimit(RATE)
        bulk = asyncio.ensure_future(send(limit, int(5 * RATE)))
        while now() < 4:
            before = now()
            limit.count(int(RATE / 20))
            assert now() == before
            await asyncio.sleep(0.1)
        return await bulk, now()

    assert run(main())[0] == pytest.approx(7 - BURST, abs=0.1), "5 of bulk, and 2 of what went first"


def test_bulk_is_not_starved_by_what_goes_first() -> None:
    async def main() -> int:
        limit, passed = RateLimit(RATE), list[int]()
        bulk = asyncio.ensure_future(send(limit, int(100 * RATE), passed.append))
        while now() < 20:
            limit.count(int(RATE / 5))
            await asyncio.sleep(0.1)
        bulk.cancel()
        return sum(passed)

    assert run(main()) == pytest.approx(20 * RATE / PATIENCE, rel=0.1)


def test_mail_and_averaging_have_half_each_and_all_of_it_alone() -> None:
    async def main() -> tuple[float, float]:
        mail = RateLimit(RATE)
        averaging = mail.in_averager()
        return await asyncio.gather(send(mail, int(4 * RATE)), send(averaging, int(RATE)))

    mail, averaging = run(main())
    assert averaging == pytest.approx(2, abs=0.2)
    assert mail == pytest.approx(5 - BURST, abs=0.1)


def test_a_round_that_begins_while_mail_sends_has_its_half_at_once() -> None:
    async def main() -> float:
        mail = RateLimit(RATE)
        bulk = asyncio.ensure_future(send(mail, int(100 * RATE)))
        await asyncio.sleep(30)
        seconds = await send(mail.in_averager(), int(5 * RATE)) - 30
        bulk.cancel()
        return seconds

    assert run(main()) == pytest.approx(10, abs=0.1)


def test_two_processes_keep_to_one_limit() -> None:
    limit, size = RateLimit(RATE), int(RATE)
    began = time.monotonic()
    if (child := os.fork()) == 0:
        asyncio.run(send(limit.in_averager(), size))
        os._exit(0)
    asyncio.run(send(limit, size))
    assert os.waitpid(child, 0)[1] == 0
    # Both together take 2 - BURST; a piece is lost where one is set aside between its read and its write.
    assert time.monotonic() - began >= 1.5, "each had all of the rate, which takes 1 - BURST"


def test_who_gives_up_while_it_waits_has_passed_nothing() -> None:
    async def main() -> float:
        limit = RateLimit(RATE)
        await send(limit, int(RATE * BURST))
        limit.count(int(RATE / 100))
        first = asyncio.ensure_future(limit.wait(limit.piece))
        await asyncio.sleep(0)
        first.cancel()
        await asyncio.wait({first})
        began = now()
        await limit.wait(limit.piece)
        return now() - began

    assert run(main()) == pytest.approx(0.01, abs=0.001)


def test_without_a_limit_nothing_waits() -> None:
    async def main() -> float:
        assert all(limit.rate == math.inf for limit in RateLimits.of(Limits()))
        return await send(UNLIMITED.up, 1 << 40)

    assert run(main()) == 0


def test_settings_are_bits_and_pieces_are_small_on_slow_lines() -> None:
    limits = RateLimits.of(Limits(upload=20, download=0.5))
    assert (limits.up.rate, limits.down.rate) == (2.5e6, 62_500)
    assert limits.up.piece == 50_000 and limits.down.piece == 4096
    assert RateLimits.of(Limits(upload=10_000)).up.piece == MOST
