"""Nodes for all tests of a module that leave them as they were: to start one takes half a second.

@pytest.fixture(scope="module")
def shared() -> Iterator[Shared]:
    with shared_nodes(2) as run:
        yield run
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager

from hive_world import HivePorts, HiveWorld

from swarm.processes.event_loop import EventLoop
from swarm.types import PeerId

Body = Callable[[HiveWorld, list[HivePorts]], Awaitable[None]]
Shared = Callable[[Body], None]


@contextmanager
def shared_nodes(begin: Callable[[HiveWorld], Awaitable[list[HivePorts]]]) -> Iterator[Shared]:
    """What runs a body with their world and with those that `begin` made. They answer to `echo`. A body may
    leave them with more services, or with another p2pd or DHT; nodes that it starts end with it. Reports are
    those of the body."""
    world = HiveWorld()

    async def begun() -> list[HivePorts]:
        peers = await begin(world)
        for peer in peers:
            await peer.mail.serve("echo", echo)
        return peers

    async def whole(body: Body, peers: list[HivePorts]) -> None:
        world.reports.clear()
        try:
            await body(world, peers)
        finally:
            kept = [peer.node for peer in peers]
            await world.end([node for node in world.nodes if node not in kept])

    with asyncio.Runner(loop_factory=EventLoop) as runner:
        try:
            peers = runner.run(begun())
            yield lambda body: runner.run(whole(body, peers))
        finally:
            runner.run(world.close())


async def echo(_sender: PeerId, message: bytes) -> bytes:
    return message
