"""Versions have the same weights where a step changed nothing: one is not taken for another."""

from __future__ import annotations

import asyncio
from random import Random

from nouns import release
from still_host import membership, still_host

from peers.roles.other_learners import OtherLearners
from swarm.config import DelayLaw
from swarm.net.in_memory import MemoryNetwork
from swarm.protocol import Role
from swarm.sim.clock import run
from swarm.sim.links import SimLinks
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
                mine.hear_beat(other.sealed_beat())
            assert found == [(1, SAME, "other"), (2, SAME, "other")]
            learners = OtherLearners(mine, lambda: 2)
            for version, there in ((1, []), (2, ["other"])):
                assert learners.at_point((version, SAME)) == there
                announced = release(version=version, weights=SAME, publisher="gone")
                assert learners.at_release(announced) == (there[0] if there else None)

    run(scene())
