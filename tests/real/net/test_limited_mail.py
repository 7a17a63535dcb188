"""Mail of peers with limits, over real p2pd on loopback: blocks keep to them, all else goes first."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from hive_world import HiveWorld

from swarm.settings.config import Limits
from swarm.types import PeerId

BLOCK = 1 << 18
MBIT = 40.0
SECONDS = 3.0


async def block(sender: PeerId, message: bytes) -> bytes:
    return bytes(BLOCK)


async def receipt(sender: PeerId, message: bytes) -> bytes:
    return b"admit"


def with_pair(server: Limits, asker: Limits, promise: Callable[[Any, Any], Awaitable[None]]) -> None:
    async def main() -> None:
        world = HiveWorld("limits")
        try:
            holder = await world.start("holder", limits=server)
            other = await world.start("other", holder.addresses()[:1], limits=asker)
            await holder.mail.serve("blobs", block)
            await holder.mail.serve("groups", receipt)
            async with asyncio.timeout(90):
                await promise(holder, other)
        finally:
            await world.close()

    asyncio.run(main())


async def fetch_forever(mail: Any, holder: PeerId, arrived: list[int]) -> None:
    while True:
        arrived.append(len(await mail.send(holder, "blobs", b"?", timeout=60.0)))


@pytest.mark.parametrize("direction", ["upload", "download"])
def test_blocks_keep_to_the_limit_and_all_of_them_come(direction: str) -> None:
    async def promise(holder: Any, other: Any) -> None:
        arrived = list[int]()
        began = time.monotonic()
        fetching = [asyncio.ensure_future(fetch_forever(other.mail, holder.me, arrived)) for _ in range(4)]
        while time.monotonic() - began < SECONDS or len(arrived) < 4:
            await asyncio.sleep(0.05)
        seconds = time.monotonic() - began
        for task in fetching:
            task.cancel()
        assert sum(arrived) * 8 / seconds <= 1.1 * MBIT * 1e6

    limited = Limits(upload=MBIT) if direction == "upload" else Limits(download=MBIT)
    with_pair(*((limited, Limits()) if direction == "upload" else (Limits(), limited)), promise)
