"""How many learners share a batch is asked at each group, and computed once for each change."""

from __future__ import annotations

import asyncio
from random import Random

import pytest
from still_host import membership, still_host

from peers.learner.agreement.other_learners import OtherLearners
from swarm.core.agreement.missed_rounds import MISSES
from swarm.net.memory.network import MemoryNetwork
from swarm.protocol import Phase, Role
from swarm.settings.config import DelayLaw
from swarm.sim.clock import run
from swarm.sim.links import SimLinks
from swarm.types import PeerId


class Counting(OtherLearners):
    looks = 0

    def partners(self) -> list[PeerId]:
        self.looks += 1
        return super().partners()


def test_it_is_computed_anew_when_a_heartbeat_my_version_or_my_speed_is_another_or_a_round_is_over() -> None:
    async def scene() -> None:
        async with MemoryNetwork(Random(1), SimLinks(DelayLaw(), 1e6, Random(1))) as network:
            other = still_host(network, "other", Role.LEARNER, membership=membership("other", Role.LEARNER))
            mine, version = still_host(network, "mine", Role.LEARNER), 1
            learners = Counting(mine, lambda: version)
            other.status.version, other.status.phase = 1, Phase.GATHERING

            async def receive() -> None:
                await asyncio.sleep(0.1)
                mine.presence.receive(other.beats.sealed())

            def anew(fast: float) -> None:
                """A change has come: it is computed once, and is `fast`."""
                before = learners.looks
                for _ in range(5):
                    assert learners.as_fast() == pytest.approx(fast)
                assert learners.looks == before + 1

            anew(1)
            await receive()
            anew(2)
            mine.status.speed = other.status.speed = 2.0
            anew(2)
            other.status.speed = 6.0
            await receive()
            anew(4)
            other.status.phase = Phase.MATCHING
            await receive()
            for _ in range(MISSES):  # it says that it comes, and does not
                anew(4)
                with learners.meeting():
                    await asyncio.sleep(mine.config.run.averaging.match)
            anew(1)
            version = 2  # it is tried again
            anew(4)
            mine.roster.forget(PeerId("other"))
            anew(1)

    run(scene())
