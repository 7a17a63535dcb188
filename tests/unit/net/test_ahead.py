"""What is made ahead of whoever iterates."""

import asyncio
import contextlib

import pytest

from swarm.net.averaging.allreduce import ahead


async def numbers(count, began, error=None):
    for number in range(count):
        began.append(number)
        yield number
        await asyncio.sleep(0)
    if error is not None:
        raise error


async def settled():
    for _ in range(50):
        await asyncio.sleep(0)


@pytest.mark.parametrize("most", [1, 2, 5])
def test_items_come_in_order_and_at_most_so_many_are_there_before_they_are_asked_for(most):
    async def scene():
        began, got = [], []
        async with contextlib.aclosing(ahead(numbers(9, began), most)) as items:
            async for item in items:
                await settled()
                got.append(item)
                assert began == list(range(min(9, item + 1 + most)))
        assert got == list(range(9))

    asyncio.run(scene())


def test_an_error_comes_after_the_items_before_it():
    async def scene():
        got = []
        with pytest.raises(ValueError, match="no more"):
            async for item in ahead(numbers(3, [], ValueError("no more")), 5):
                await settled()
                got.append(item)
        assert got == [0, 1, 2]

    asyncio.run(scene())


@pytest.mark.parametrize("wait", [False, True])
def test_who_leaves_early_closes_the_items(wait):
    async def scene():
        ended = []

        async def items():
            try:
                yield 0
                yield 1
                await asyncio.Event().wait()
            finally:
                ended.append(True)

        async with contextlib.aclosing(ahead(items(), 1)) as some:
            async for item in some:
                if item == int(wait):
                    await settled()
                    break
        assert ended and len(asyncio.all_tasks()) == 1

    asyncio.run(scene())
