"""The board in one process: records that expire, each under its writer's id.

Not handled here: how long a message travels (swarm.net.memory.network).
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING

from swarm.limits import RECORD_LIMIT, RECORD_SECONDS
from swarm.types import PeerId

if TYPE_CHECKING:
    from swarm.net.memory.network import MemoryNetwork


class MemoryBoard:
    def __init__(self, network: MemoryNetwork, me: PeerId) -> None:
        self._network = network
        self._me = me

    async def put(self, key: str, value: bytes, ttl: float) -> bool:
        """True when another peer can be reached, or there is no other. Raises ValueError beyond 1 KiB or 120
        s."""
        if len(value) > RECORD_LIMIT or not 0 < ttl <= RECORD_SECONDS:
            raise ValueError(
                f"a record of {len(value)} bytes for {ttl:g} s: at most {RECORD_LIMIT} bytes and"
                f" {RECORD_SECONDS:g} s"
            )
        network, me = self._network, self._me
        await asyncio.sleep(network.links.seconds(me, me, len(value)))
        network.records.setdefault(key, {})[me] = (value, network.clock.now() + ttl)
        return len(network.hosts) == 1 or any(
            network.links.open(me, peer) for peer in network.hosts if peer != me
        )

    async def get(self, key: str) -> Mapping[PeerId, bytes]:
        """A reader on one side of a partition does not see the records of the other side."""
        network, me = self._network, self._me
        await asyncio.sleep(network.links.seconds(me, me, 0))
        now = network.clock.now()
        records = {peer: record for peer, record in network.records.get(key, {}).items() if record[1] > now}
        network.records[key] = records
        return {peer: value for peer, (value, _) in records.items() if network.links.open(peer, me)}
