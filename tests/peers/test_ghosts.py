"""Gossip is heard from whoever signed it alone: nobody makes ghosts of peers that are gone."""

from __future__ import annotations

import asyncio
from random import Random

from still_host import membership, still_host

from swarm import events
from swarm.config import DelayLaw
from swarm.net.in_memory import MemoryNetwork
from swarm.protocol import Role, Topic
from swarm.sim.clock import run
from swarm.sim.links import SimLinks


def test_what_another_peer_signed_is_not_heard_and_who_says_it_again_is_named() -> None:
    async def scene() -> None:
        told, bus = list[events.Event](), events.Bus()
        bus.add(told.append)
        async with MemoryNetwork(Random(1), SimLinks(DelayLaw(), 1e6, Random(1))) as network:
            dead = still_host(
                network, "learner", Role.LEARNER, membership=membership("learner", Role.LEARNER)
            )
            newcomer = still_host(network, "newcomer", Role.SAMPLER, bus=bus)
            medium = network.ports("medium", lambda kind: 0.0)
            listening = asyncio.create_task(newcomer.listen(Topic.BEAT, newcomer.hear_beat))
            await asyncio.sleep(1.0)
            await medium.gossip.publish(dead.topic(Topic.BEAT), dead.sealed_beat())
            await asyncio.sleep(1.0)
            assert not newcomer.roster.learners()
            (rejected,) = (event for event in told if isinstance(event, events.Rejected))
            assert rejected.sender == "medium" and "signed by learner" in rejected.reason
            await dead.ports.gossip.publish(dead.topic(Topic.BEAT), dead.sealed_beat())
            await asyncio.sleep(1.0)
            assert newcomer.roster.learners() == ["learner"]
            listening.cancel()

    run(scene())
