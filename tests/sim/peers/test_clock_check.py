"""A peer whose clock differs from the others' says so, by how much and what to do."""

from __future__ import annotations

import asyncio
from random import Random

import pytest
from nouns import beat
from still_host import still_host

from peers.runtime.host import Host
from peers.runtime.watching.clock_check import ClockCheck
from swarm import events
from swarm.net.memory.network import MemoryNetwork
from swarm.protocol import Role
from swarm.settings.config import DelayLaw
from swarm.sim.clock import run
from swarm.sim.links import SimLinks
from swarm.types import PeerId


def receive(host: Host, off: float, seqs: range) -> None:
    """Heartbeats of three others; my clock is `off` seconds ahead of theirs."""
    for seq in seqs:
        for peer in map(PeerId, ("learner-0", "learner-1", "seed-0")):
            host.roster.receive(peer, beat(name=peer, seq=seq, at=host.now() - off), host.now())


@pytest.mark.parametrize(("off", "where"), [(3600.0, "3600 s ahead of"), (-90.0, "90 s behind")])
def test_a_wrong_clock_is_told_once_and_again_when_it_is_right_and_wrong_again(
    off: float, where: str
) -> None:
    async def main() -> list[str]:
        links = SimLinks(DelayLaw(law="constant", seconds=0.01), 1e9, Random(1))
        async with MemoryNetwork(Random(2), links) as network:
            host, told = still_host(network, "sampler-0", Role.SAMPLER), []
            host.bus.add(lambda event: told.append(event.text) if isinstance(event, events.Noted) else None)
            check = ClockCheck(host)
            for now_off, seqs in (
                (0.0, range(1, 9)),
                (off, range(9, 20)),
                (0.0, range(20, 30)),
                (off, range(30, 40)),
            ):
                receive(host, now_off, seqs)
                check.look()
                check.look()
            return told

    told = run(main())
    assert len(told) == 2
    assert all(f"the clock of this machine is {where} the other peers'" in text for text in told)
    assert all("set-ntp true" in text for text in told)


def test_a_peer_that_loaded_its_engine_for_minutes_before_it_began_did_not_stand_still() -> None:
    async def main() -> list[events.Event]:
        links = SimLinks(DelayLaw(law="constant", seconds=0.01), 1e9, Random(1))
        async with MemoryNetwork(Random(2), links) as network:
            host, told = still_host(network, "sampler-0", Role.SAMPLER), list[events.Event]()
            host.bus.add(told.append)
            await asyncio.sleep(300.0)
            host.presence._clock_check.look()
            return told

    assert not run(main())


@pytest.mark.parametrize(("stood", "says"), [(7200.0, "2 h"), (300.0, "5 min"), (5.0, "")])
def test_a_peer_that_stood_still_says_so_before_it_misses_the_others(
    stood: float, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a laptop that slept: the unix time goes on, and the clock of the loop does not."""

    async def main() -> list[events.Event]:
        links = SimLinks(DelayLaw(law="constant", seconds=0.01), 1e9, Random(1))
        async with MemoryNetwork(Random(2), links) as network:
            host, told, asleep = still_host(network, "sampler-0", Role.SAMPLER), list[events.Event](), 0.0
            right = host.now
            monkeypatch.setattr(host, "now", lambda: right() + asleep)
            receive(host, 0.0, range(1, 2))
            host.bus.add(told.append)
            looking = asyncio.create_task(host.presence.run())
            await asyncio.sleep(1.0)
            asleep = stood
            await asyncio.sleep(3.0)
            looking.cancel()
            return told

    told = run(main())
    if not says:
        assert not told
        return
    first, *rest = told
    assert isinstance(first, events.Noted) and first.level == "warning"
    assert first.text.startswith(f"this peer stood still for {says}: its machine slept or was too busy")
    assert [type(one) for one in rest] == [events.Lost] * 3
