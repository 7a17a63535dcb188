"""One identity in two places: what the newer process does, what the older one does, and what is only a
restart."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from random import Random

import pytest
from nouns import beat
from still_host import RUN, membership, still_host

from peers.errors import REFUSED, Refusal, explain
from peers.runtime.frames import Frames
from peers.runtime.host import Host
from peers.runtime.membership.identity_check import BeatQuery
from swarm import events
from swarm.frames import wire
from swarm.limits import BEAT_LIMIT
from swarm.net.memory.network import MemoryKeyring, MemoryNetwork
from swarm.protocol import Role, Topic
from swarm.settings.config import DelayLaw
from swarm.sim.clock import run
from swarm.sim.links import SimLinks
from swarm.types import PeerId

MINE = 1000
ME = PeerId("me")


class Life:
    """A learner of incarnation MINE and a seed; `other` is what comes from elsewhere with the learner's
    key."""

    def __init__(self, network: MemoryNetwork) -> None:
        self.network, self.told, bus = network, list[events.Event](), events.Bus()
        bus.add(self.told.append)
        self.seed = still_host(
            network, "seed", Role.SEED, observes=True, membership=membership("seed", Role.SEED)
        )
        me = membership(ME, Role.LEARNER)
        self.host = still_host(network, ME, Role.LEARNER, bus=bus, incarnation=MINE, membership=me)
        self.frames = Frames(RUN, MemoryKeyring(ME), me, None)

    async def other(self, incarnation: int, numbers: range, every: float, asks: bool = False) -> None:
        """Its heartbeats; where it `asks`, gossip carries none of them, and it asks the seed as I do."""
        for seq in numbers:
            told = beat(
                incarnation=incarnation, seq=seq, addresses=("/ip4/10.0.0.9/tcp/1",), hardware="2 cores"
            )
            sealed = self.frames.seal(told, BEAT_LIMIT)
            if asks:
                question = wire.encode(BeatQuery(incarnation=incarnation, beat=sealed))
                assert await self.seed.identity._answer(ME, question), "the seed hears me by gossip"
            for reader in self.network.topics.get(wire.topic(RUN, Topic.BEAT), {}):
                if reader.peer != ME and not asks:  # gossip of a key in two places reaches one of them only
                    reader.push((ME, sealed))
            await asyncio.sleep(every)

    def faults(self) -> list[str]:
        return [one.detail for one in self.told if isinstance(one, events.Faulted) and one.part == "identity"]


@asynccontextmanager
async def lives() -> AsyncIterator[Life]:
    async with MemoryNetwork(Random(1), SimLinks(DelayLaw(), 1e6, Random(1))) as network:
        life = Life(network)
        async with asyncio.TaskGroup() as tasks:
            running = [
                tasks.create_task(service)
                for service in (both(life.host), life.seed.run(life.seed.stop.wait))
            ]
            yield life
            for task in running:
                task.cancel()


async def both(host: Host) -> None:
    async with asyncio.TaskGroup() as tasks:
        asking = tasks.create_task(host.identity.run())
        await host.run(host.stop.wait)
        asking.cancel()


def test_the_older_process_stops_and_says_where_the_newer_one_is_and_what_to_do() -> None:
    told: list[events.Event] = []

    async def scene() -> None:
        async with lives() as life:
            told.extend(life.told)
            life.told = told
            await life.other(MINE + 1, range(100), every=2.0)

    with pytest.raises(BaseExceptionGroup) as caught:
        run(scene())
    code, sentence = explain(caught.value) or (0, "")
    assert code == REFUSED == Refusal.code
    assert "/ip4/10.0.0.9/tcp/1 (2 cores)" in sentence and "delete the file `key`" in sentence
    assert not [one for one in told if isinstance(one, events.Left)], "the other one is still there"


def test_the_older_process_stops_though_gossip_carries_its_own_heartbeats_alone() -> None:
    """It connected last. Before, the newer one named the copy for ever, and the older one knew of none."""

    async def scene() -> None:
        async with lives() as life:
            await asyncio.sleep(5.0)
            await life.other(MINE + 1, range(20), every=15.0, asks=True)

    with pytest.raises(BaseExceptionGroup) as caught:
        run(scene())
    code, sentence = explain(caught.value) or (0, "")
    assert code == REFUSED and "was started later" in sentence


def test_the_newer_process_goes_on_and_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    async def scene() -> list[str]:
        async with lives() as life:
            await life.other(MINE - 1, range(100), every=2.0)
            return life.faults()

    found = run(scene())
    assert 1 < len(found) < 5, "again each minute while it goes on"
    assert "10.0.0.9" in found[0] and "goes on" in found[0]
    assert capsys.readouterr().err.count("has this peer's key") == 1


@pytest.mark.parametrize("incarnation", [MINE - 1, MINE + 1])
def test_late_heartbeats_from_before_a_restart_are_no_other_process(incarnation: int) -> None:
    async def scene() -> list[str]:
        async with lives() as life:
            await life.other(incarnation, range(40, 44), every=1.0)
            await asyncio.sleep(600.0)
            return life.faults()

    assert run(scene()) == []
