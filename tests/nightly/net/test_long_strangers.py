"""Every handler of a node of a private run, as the code has them: what a stranger asks is refused before its
body is read, or the handler stands here with the reason why it is open. A handler that is new is found."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from swarm.protocol import Key


def test_the_board_of_a_private_run_has_members_alone() -> None:
    hive_world = pytest.importorskip("hive_world", exc_type=ImportError)
    from swarm.frames.wire import topic

    async def settled(*members: Any) -> None:
        """Each of them posts and finds all of them."""
        key = topic(members[0].node.run, Key.MEMBER)
        async with asyncio.timeout(30.0):
            for member in members:
                while set(await member.board.get(key)) != {one.me for one in members}:
                    await asyncio.gather(*(one.board.put(key, b"here", 60.0) for one in members))
                    await asyncio.sleep(0.1)

    async def body(world: Any) -> None:
        first, second, stranger = await world.ports(3)
        known = [first.me, second.me]
        for member in (first, second):
            member.board.prefer(lambda: known, closed=True)
            await member.board.pass_members()
        key = topic(world.run, Key.MEMBER)
        assert not await stranger.board.put(key, b"me, too", 60.0)
        await settled(first, second)
        assert set(await stranger.board.get(key)) <= {stranger.me}
        known.append(stranger.me)
        await settled(first, second, stranger)

    hive_world.in_world(body)
