"""Mirrors: they hold every release and its patches as soon as these are announced, and are asked first, if
the owner has invited them."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from nouns import beat
from patch_swarms import BYTES
from still_host import membership, still_host

from peers.runtime.host import Host
from swarm.core.agreement.patch_path import RUNG
from swarm.core.roster import Roster
from swarm.net.memory.network import MemoryNetwork
from swarm.protocol import Role
from swarm.settings.config import Config, DelayLaw, Peer
from swarm.sim.clock import run
from swarm.sim.links import SimLinks
from swarm.storage.weights import Weights
from swarm.types import PeerId, Release

MIRROR = Config(peer=Peer(serve="mirror"))


class Swarm:
    """Hosts that run, without a role's work."""

    def __init__(self, network: MemoryNetwork, tasks: asyncio.TaskGroup) -> None:
        self.network, self.tasks = network, tasks
        self.released = list[Release]()
        self.running: dict[str, asyncio.Task[None]] = {}

    def host(self, name: str, role: Role, config: Config | None = None, invited: bool = True) -> Host:
        member: Any = membership(name, role) if invited else None
        host = still_host(self.network, name, role, config, membership=member)
        self.running[name] = self.tasks.create_task(host.run(host.stop.wait))
        return host

    async def genesis(self, *takers: Host) -> Release:
        """Version 0, of which a learner's release is a patch."""
        seed = self.host("origin", Role.SEED)
        await asyncio.sleep(1)
        self.released.append(await seed.releases.publish(Weights.of(BYTES[0], 0)))
        await asyncio.gather(*(taker.releases.fetch(self.released[0]) for taker in takers))
        self.stop("origin")
        return self.released[0]

    def stop(self, name: str) -> None:
        self.running.pop(name).cancel()
        self.network.crash(PeerId(name))

    async def release(self, learner: Host) -> Release:
        version = len(self.released)
        data = BYTES[version]
        weights = await learner.releases.pack(lambda: Weights.of(data, version))
        parent = self.released[-1].weights
        release = await learner.releases.prepare(weights, parent=parent, learners=1, groups=1)
        await learner.releases.announce(release)
        learner.status.version = version
        self.released.append(release)
        return release


def among(promise: Callable[[Swarm], Awaitable[None]]) -> None:
    async def main() -> None:
        links = SimLinks(DelayLaw(law="constant", seconds=0.02), 12.5e6, random.Random(1))
        async with MemoryNetwork(random.Random(2), links) as network, asyncio.TaskGroup() as tasks:
            swarm = Swarm(network, tasks)
            await promise(swarm)
            for running in swarm.running.values():
                running.cancel()

    run(main())


async def until(holds: Callable[[], bool], seconds: float = 60.0) -> None:
    async with asyncio.timeout(seconds):
        while not holds():
            await asyncio.sleep(0.05)


def has_all(host: Host, release: Release) -> bool:
    files = host.releases.patches.files
    return host.releases.blobs.is_whole(release.weights) and all(
        files.is_whole(patch.root) for patch in release.patches
    )


@pytest.mark.parametrize("role", [Role.OBSERVER, Role.EVALUATOR, Role.SAMPLER, Role.SEED])
def test_a_mirror_holds_each_release_and_all_its_patches(role: Role) -> None:
    async def promise(swarm: Swarm) -> None:
        learner, mirror = swarm.host("learner", Role.LEARNER), swarm.host("mirror", role, MIRROR)
        await swarm.genesis(learner)
        for _ in range(RUNG):
            release = await swarm.release(learner)
            await until(lambda release=release: has_all(mirror, release))  # type: ignore[misc]
        assert len(release.patches) == 2, "one from the version before and one from a rung below"

    among(promise)


def test_who_is_behind_takes_a_version_from_the_mirror_when_its_publisher_is_gone() -> None:
    async def promise(swarm: Swarm) -> None:
        learner, mirror = swarm.host("learner", Role.LEARNER), swarm.host("mirror", Role.OBSERVER, MIRROR)
        behind = swarm.host("behind", Role.SAMPLER)
        await swarm.genesis(learner, behind)
        for _ in range(RUNG):
            release = await swarm.release(learner)
            await until(lambda release=release: has_all(mirror, release))  # type: ignore[misc]
        await until(lambda: behind.roster.holders(release.version)[:1] == [PeerId("mirror")])
        swarm.stop("learner")
        behind.traffic.drain(behind.now(), ())
        assert (await behind.releases.fetch(release)).digest == release.weights
        passed = (behind.traffic.drain(behind.now(), ()) or {})["received"]["weights"]
        assert passed < release.size / 10, "the patch of the rung, and no whole release"

    among(promise)


def test_a_stranger_is_not_asked_first() -> None:
    async def promise(swarm: Swarm) -> None:
        learner, other = swarm.host("learner", Role.LEARNER), swarm.host("other", Role.SAMPLER)
        stranger = swarm.host("a stranger", Role.OBSERVER, MIRROR, invited=False)
        await swarm.genesis(learner)
        release = await swarm.release(learner)
        await until(lambda: has_all(stranger, release) and PeerId("learner") in other.roster.holders(1))
        await asyncio.sleep(5)
        assert PeerId("a stranger") in other.roster
        assert other.roster.holders(1) == [PeerId("learner")]

    among(promise)


def test_mirrors_are_asked_first_for_what_they_hold() -> None:
    roster = Roster(10.0, random.Random(1))
    for name, role, version, mirror in (
        ("learner", Role.LEARNER, 5, -1),
        ("mirror", Role.OBSERVER, -1, 5),
        ("late", Role.EVALUATOR, 4, 4),
        ("watcher", Role.OBSERVER, -1, -1),
    ):
        roster.receive(PeerId(name), beat(role=role, version=version, mirror=mirror), 0.0)
    assert roster.holders(5) == ["mirror", "learner"]
    assert roster.holders(4) == ["late", "mirror", "learner"]


def test_a_role_and_a_mirror_fetch_a_release_once() -> None:
    async def promise(swarm: Swarm) -> None:
        learner, mirror = swarm.host("learner", Role.LEARNER), swarm.host("mirror", Role.EVALUATOR, MIRROR)
        await asyncio.sleep(1)
        release = await swarm.genesis(learner, mirror)
        await asyncio.sleep(5)
        passed = (mirror.traffic.drain(mirror.now(), ()) or {})["received"]["weights"]
        assert release.size <= passed < 1.1 * release.size

    among(promise)
