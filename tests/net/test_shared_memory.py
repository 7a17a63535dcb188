"""torch's manager of shared memory, a process below every peer, is killed."""

from __future__ import annotations

import psutil
from hive_world import HiveWorld, in_world


def test_a_node_asks_its_dht_on_after_the_manager_of_shared_memory_was_killed() -> None:
    async def body(world: HiveWorld) -> None:
        (node,) = await world.ports(1)
        assert await node.board.get("nobody") == {}
        managers = [one for one in psutil.Process().children(recursive=True) if "shm_manager" in one.name()]
        assert managers
        for one in managers:
            one.kill()
        for _ in range(40):  # hivemind's own buffer is full after 16
            assert await node.board.get("nobody") == {}

    in_world(body)
