"""An asynchronous generator that goes on while its items are used.

    items --task, at most so many ahead--> whoever iterates

Not handled: what the items are.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from typing import TypeVar

T = TypeVar("T")


async def ahead(items: AsyncGenerator[T], most: int) -> AsyncGenerator[T]:
    """`items` in their order, of which up to `most` are there before they are asked for; what they raise
    comes after those before it. Close it where you leave early: that closes them, too."""
    places, made = asyncio.Semaphore(most), asyncio.Queue[T | None]()

    async def make() -> None:
        try:
            async with contextlib.aclosing(items):
                await places.acquire()
                async for item in items:
                    made.put_nowait(item)
                    await places.acquire()
        finally:
            made.put_nowait(None)

    making = asyncio.get_running_loop().create_task(make())
    try:
        while (item := await made.get()) is not None:
            places.release()
            yield item
        await making
    finally:
        making.cancel()
        await asyncio.gather(making, return_exceptions=True)
