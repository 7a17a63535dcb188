"""Gossip is heard from whoever signed it alone: nobody makes ghosts of peers that are gone."""

from __future__ import annotations

import asyncio
from random import Random

from still_host import membership, still_host

from swarm import events
from swarm.net.memory.network import MemoryNetwork
from swarm.protocol import Role, Topic
from swarm.settings.config import DelayLaw
from swarm.sim.clock import run
from swarm.sim.links import SimLinks
from swarm.types import PeerId


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
            listening = asyncio.create_task(newcomer.listen(Topic.BEAT, newcomer.presence.receive))
            await asyncio.sleep(1.0)
            await medium.gossip.publish(dead.topic(Topic.BEAT), dead.beats.sealed())
            await asyncio.sleep(1.0)
            assert not newcomer.roster.learners()
            (rejected,) = (event for event in told if isinstance(event, events.Rejected))
            assert rejected.sender == "medium" and "signed by learner" in rejected.reason
            await dead.ports.gossip.publish(dead.topic(Topic.BEAT), dead.beats.sealed())
            await asyncio.sleep(1.0)
            assert newcomer.roster.learners() == ["learner"]
            listening.cancel()

    run(scene())


def test_a_crowd_that_names_revocations_keeps_no_member_from_being_asked() -> None:
    async def scene() -> None:
        async with MemoryNetwork(Random(1), SimLinks(DelayLaw(), 1e6, Random(1))) as network:
            mine = still_host(network, "mine", Role.SAMPLER, private=True)
            member, asked = PeerId("member"), list[PeerId]()

            async def ask(peer: PeerId) -> None:
                asked.append(peer)
                await asyncio.sleep(5.0)  # it does not answer

            mine.revocations.ask = ask  # type: ignore[method-assign]
            shown = membership("member", Role.LEARNER)
            assert mine.trust.lack(member, Role.LEARNER, shown, mine.now()) is None
            for number in range(2000):
                mine.revocations.note_claim(PeerId(f"stranger-{number}"), 2**31)
            mine.revocations.note_claim(member, 7)
            for number in range(2000):
                mine.revocations.note_claim(PeerId(f"stranger-{number}"), 2**31)
            asking = asyncio.create_task(mine.revocations.run())
            await asyncio.sleep(1.0)
            assert asked == [member], "whoever has shown a membership is asked first"
            await asyncio.sleep(60.0)
            assert len(asked) > 40, "then the others"
            asking.cancel()

    run(scene())
