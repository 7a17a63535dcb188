"""A peer that leaves says goodbye, and waits for nobody who does not take it."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from random import Random

from still_host import still_host

from peers.runtime.host import FAREWELL
from swarm.net.memory.network import MemoryNetwork
from swarm.protocol import Role
from swarm.settings.config import DelayLaw
from swarm.sim.clock import run
from swarm.sim.links import SimLinks


def test_a_goodbye_that_a_hung_network_does_not_take_ends() -> None:
    async def scene() -> float:
        host = still_host(MemoryNetwork(Random(1), SimLinks(DelayLaw(), 1e6, Random(1))), "one", Role.SAMPLER)
        served = host.ports.gossip

        class Hung:
            subscribe = served.subscribe

            async def publish(self, topic: str, data: bytes) -> None:
                await asyncio.Event().wait()

        host.ports = replace(host.ports, gossip=Hung())

        async def role() -> None:
            await host.ports.clock.sleep(10.0)

        began = host.now()
        await host.run(role)
        return host.now() - began

    assert run(scene()) == 10.0 + FAREWELL
