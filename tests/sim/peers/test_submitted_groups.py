"""What came to a learner, as auditors are told of it: from where they left off, and no more than is held."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from random import Random

import pytest
from nouns import beat, group
from still_host import still_host

from peers.audits import submitted_groups
from peers.audits.submitted_groups import LISTED, Submitted, SubmittedGroups, SubmittedQuery
from swarm.frames import wire
from swarm.net.memory.network import MemoryNetwork
from swarm.net.ports import Refused
from swarm.protocol import Role, Service
from swarm.settings.config import DelayLaw
from swarm.sim.clock import run
from swarm.sim.links import SimLinks
from swarm.storage.blocks import digest_of
from swarm.types import Digest, PeerId

ADA, BOB = PeerId("ada"), PeerId("bob")
AUDITOR, LEARNER = PeerId("auditor-0"), PeerId("learner-0")


class Listing:
    """A learner's groups, and an auditor that asks for them."""

    def __init__(self, network: MemoryNetwork) -> None:
        self.host = still_host(network, LEARNER, Role.LEARNER)
        self.host.roster.receive(AUDITOR, beat(role=Role.AUDITOR), self.host.now())
        self.groups = SubmittedGroups(self.host)
        self.mail = network.ports(AUDITOR, lambda _: 0.0).mail

    def came(self, number: int, sampler: PeerId = ADA, size: int = 10) -> bytes:
        frame = b"%d" % number + bytes(size)
        self.groups.add(group(number, sampler=sampler), frame)
        return frame

    async def asks(self, after: int = 0, which: str = "", life: int | None = None) -> bytes:
        life = self.host.who.incarnation if life is None else life
        question = wire.encode(SubmittedQuery(life=life, after=after, group=Digest(which)))
        return await self.mail.send(LEARNER, Service.SUBMITTED, question)

    async def listed(self, after: int = 0, life: int | None = None) -> Submitted:
        return wire.decode(await self.asks(after, life=life), Submitted)

    async def held(self) -> set[Digest]:
        return {one.group for one in (await self.listed()).groups}


def listing(play: Callable[[Listing], Awaitable[None]]) -> None:
    async def main() -> None:
        async with MemoryNetwork(Random(1), SimLinks(DelayLaw(), 1e9, Random(1))) as network:
            one = Listing(network)
            await one.groups.serve()
            await play(one)

    run(main())


def test_an_auditor_is_told_of_each_group_once_the_oldest_first_and_of_all_in_another_life() -> None:
    async def play(one: Listing) -> None:
        frames = [one.came(number) for number in range(LISTED + 3)]
        first = await one.listed()
        second = await one.listed(first.last)
        told = [each.group for each in (*first.groups, *second.groups)]
        assert told == list(map(digest_of, frames)) and len(first.groups) == LISTED
        nothing = await one.listed(second.last)
        assert not nothing.groups and nothing.last == second.last
        frames.append(one.came(99))
        assert [each.group for each in (await one.listed(second.last)).groups] == [digest_of(frames[-1])]
        assert await one.listed(second.last, life=first.life - 1) == first, "its number is of another life"
        assert await one.asks(which=told[3]) == frames[3]

    listing(play)


def test_the_newest_groups_are_held_up_to_their_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(submitted_groups, "FRAMES_BYTES", 1000)

    async def play(one: Listing) -> None:
        frames = [one.came(number, size=299) for number in range(5)]
        assert await one.held() == set(map(digest_of, frames[-3:]))
        with pytest.raises(Refused, match="no such group"):
            await one.asks(which=digest_of(frames[0]))
        one.came(5, size=2000)
        assert not await one.held(), "none is as large"
        again = [one.came(number, size=299) for number in range(6, 9)]
        assert await one.held() == set(map(digest_of, again))

    listing(play)


def test_who_is_suspended_leaves_its_room_to_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(submitted_groups, "FRAMES_BYTES", 1000)

    async def play(one: Listing) -> None:
        for number in range(2):
            one.came(number, ADA, size=299)
        kept = [one.came(2, BOB, size=299)]
        one.groups.drop(ADA)
        kept += [one.came(number, BOB, size=299) for number in (3, 4)]
        assert await one.held() == set(map(digest_of, kept))

    listing(play)


def test_only_auditors_are_told() -> None:
    async def play(one: Listing) -> None:
        one.came(0)
        one.host.roster.receive(AUDITOR, beat(role=Role.SAMPLER, incarnation=2), one.host.now())
        with pytest.raises(Refused, match="only auditors"):
            await one.asks()

    listing(play)
