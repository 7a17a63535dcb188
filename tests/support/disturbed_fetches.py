"""Fetches over lines of a given speed."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable

from patch_swarms import SIZE, Swarm

from swarm.net.memory.network import MemoryNetwork
from swarm.settings.config import DelayLaw
from swarm.sim.clock import run
from swarm.sim.flows import AccessLine
from swarm.sim.links import SimLinks
from swarm.types import PeerId

SECOND = float(SIZE)
"""Bytes a second of a line that carries a release in one second."""


def over(lines: dict[str, AccessLine], promise: Callable[[Swarm], Awaitable[None]]) -> None:
    async def main() -> None:
        law = DelayLaw(law="constant", seconds=0.02)
        mine = {PeerId(peer): line for peer, line in lines.items()}
        async with MemoryNetwork(random.Random(2), SimLinks(law, 1e9, random.Random(1), mine)) as network:
            swarm = Swarm(network)
            await swarm.learner.releases.serve()
            await promise(swarm)

    run(main())
