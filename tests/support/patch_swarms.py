"""A swarm in memory whose versions are patches of each other."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from pathlib import Path

import numpy as np
from still_host import membership, still_host

from peers.runtime.host import Host
from swarm import events
from swarm.core.agreement.patch_path import RUNG
from swarm.net.memory.network import MemoryNetwork
from swarm.protocol import Role
from swarm.settings.config import DelayLaw
from swarm.sim.clock import run
from swarm.sim.links import SimLinks
from swarm.storage.blocks import BLOCK, Blocks
from swarm.storage.weights import Weights
from swarm.types import Digest, Release

SIZE = 3 * BLOCK + 5


def versions(count: int) -> list[bytes]:
    """Random bytes, and what follows from them when one in two hundred values moves to a neighbour."""
    rng, found = np.random.default_rng(1), [random.Random(1).randbytes(SIZE)]
    while len(found) < count:
        values = np.frombuffer(found[-1], "<u2", SIZE // 2).copy()
        values[rng.choice(len(values), len(values) // 200, replace=False)] += 1
        found.append(values.tobytes() + found[-1][values.nbytes :])
    return found


BYTES = versions(RUNG + 2)


GENESIS = Blocks.of(BYTES[0]).root


class Swarm:
    """A learner that releases, and others that take."""

    def __init__(self, network: MemoryNetwork) -> None:
        self.network, self.seen = network, list[events.Event]()
        self.learner = self.host("learner", Role.LEARNER)
        self.released: list[Release] = []

    def host(self, name: str, role: Role = Role.SAMPLER, shelf: Path | None = None) -> Host:
        who = {"membership": membership(name, role), "genesis": GENESIS}
        host = still_host(self.network, name, role, shelf=shelf, **who)
        host.bus.add(self.seen.append)
        return host

    async def release(self, *whole: bytes) -> None:
        """These bytes as the next versions."""
        for data in whole:
            await self.release_as(len(self.released), data)

    async def release_as(self, version: int, data: bytes, parent: Digest | None = None) -> None:
        """These bytes as this version, made from the one that was released last, or from these weights."""
        if parent is None:
            parent = self.released[-1].weights if self.released else Digest("")
        weights = Weights.of(data, version)
        releases = self.learner.releases
        releases.blobs.hold(weights.version, weights.blocks)
        release = await releases.prepare(weights, parent=parent, learners=1, groups=1)
        await releases.announce(release)
        self.released.append(release)

    async def take(self, host: Host, release: Release) -> int:
        """Fetch a release as one that has heard of all -> the bytes of weights that `host` received."""
        for known in self.released:
            host.releases.candidates.receive(known)
        return await self.fetch(host, release)

    async def fetch(self, host: Host, release: Release) -> int:
        """Fetch a release as one that has heard of this one alone -> the bytes of weights that came."""
        host.releases.candidates.receive(release)
        host.traffic.drain(host.now(), ())
        weights = await host.releases.fetch(release)
        assert weights.digest == release.weights == Blocks.of(weights.data).root
        return sum((host.traffic.drain(host.now(), ()) or {"received": {}})["received"].values())

    @property
    def blamed(self) -> list[tuple[str, str]]:
        return [(event.sender, event.reason) for event in self.seen if isinstance(event, events.Rejected)]


def among(promise: Callable[[Swarm], Awaitable[None]]) -> None:
    async def main() -> None:
        links = SimLinks(DelayLaw(law="constant", seconds=0.02), 12.5e6, random.Random(1))
        async with MemoryNetwork(random.Random(2), links) as network:
            swarm = Swarm(network)
            await swarm.learner.releases.serve()
            await promise(swarm)

    run(main())
