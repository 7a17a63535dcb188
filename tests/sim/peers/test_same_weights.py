"""Versions have the same weights where a step changed nothing: one is not taken for another."""

from __future__ import annotations

import asyncio
from random import Random

from nouns import release
from still_host import membership, still_host

from peers.learner.agreement.other_learners import OtherLearners
from peers.seed import Seed
from swarm.net.memory.network import MemoryNetwork
from swarm.protocol import Phase, Role
from swarm.settings.config import Config, DelayLaw, Stop
from swarm.settings.config import Run as RunSettings
from swarm.sim.clock import run
from swarm.sim.links import SimLinks
from swarm.storage.weights import Weights
from swarm.types import Digest, PeerId

SAME = Digest("a" * 64)


def test_a_learner_at_the_same_weights_of_another_version_is_not_at_this_one() -> None:
    async def scene() -> None:
        async with MemoryNetwork(Random(1), SimLinks(DelayLaw(), 1e6, Random(1))) as network:
            known = membership("other", Role.LEARNER)
            other = still_host(network, "other", Role.LEARNER, membership=known)
            mine = still_host(network, "mine", Role.LEARNER)
            found = list[tuple[int, Digest, PeerId | None]]()
            mine.releases.found = lambda *at: found.append(at)  # type: ignore[method-assign]
            for version in (1, 1, 2):
                await asyncio.sleep(1.0)
                other.status.version, other.status.weights = version, SAME
                mine.presence.receive(other.beats.sealed())
            assert found == [(1, SAME, "other"), (2, SAME, "other")]
            learners = OtherLearners(mine, lambda: 2)
            for version, there in ((1, []), (2, ["other"])):
                announced = release(version=version, weights=SAME, publisher="gone")
                assert learners.at_release(announced) == (there[0] if there else None)

    run(scene())


def test_a_seed_offers_a_version_with_the_bytes_of_the_one_before_and_ends_the_run_at_it() -> None:
    async def scene() -> None:
        async with MemoryNetwork(Random(1), SimLinks(DelayLaw(), 1e6, Random(1))) as network:
            config = Config(run=RunSettings(stop=Stop(versions=2)))
            hosts = [
                still_host(network, name, role, config, membership=membership(name, role))
                for name, role in (("seed", Role.SEED), ("learner", Role.LEARNER))
            ]
            seed, learner = hosts
            async with asyncio.TaskGroup() as tasks:
                served = tasks.create_task(seed.run(Seed(seed, Weights.of(b"same", 0)).run))
                learns = tasks.create_task(learner.run(learner.stop.wait))
                told = list[tuple[int, Phase]]()
                for version in (1, 2):
                    await asyncio.sleep(5.0)
                    parent = seed.status.weights
                    await learner.releases.publish(
                        Weights.of(b"same", version), parent=parent, learners=1, groups=1
                    )
                    await asyncio.sleep(2.0)
                    told.append((seed.status.version, seed.status.phase))
                assert told == [(1, Phase.SERVING), (2, Phase.COMPLETE)]
                await asyncio.wait_for(served, 60.0)
                learns.cancel()

    run(scene())
