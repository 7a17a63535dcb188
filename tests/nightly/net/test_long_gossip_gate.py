"""Gossip of offenders: it does not wait in a queue, nobody reads it, and a peer beside one hangs up."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from swarm.limits import EVENT_LIMIT


def test_a_real_node_hangs_up_on_who_publishes_what_is_too_large() -> None:
    hive_world = pytest.importorskip("hive_world", exc_type=ImportError)
    from swarm.core.gossip_limits import GossipLimits

    async def body(world: Any) -> None:
        one, two, loud = await world.ports(3)
        limits = GossipLimits(lambda peer: False, one.clock.now)
        one.gossip.guard(limits.admits)
        one.node.shun(limits.suspended)
        line = await loud.node.line()
        async with one.gossip.subscribe("news") as heard:
            async with asyncio.timeout(60):
                while loud.me not in limits.suspended():
                    await line.publish("news", bytes(EVENT_LIMIT.sealed + 1))
                while loud.me in await (await one.node.line()).connected():
                    await asyncio.sleep(0.1)
                while True:
                    await two.gossip.publish("news", b"hello")
                    try:
                        assert await asyncio.wait_for(anext(heard), 1.0) == (two.me, b"hello")
                        break
                    except TimeoutError:
                        continue

    hive_world.in_world(body)
