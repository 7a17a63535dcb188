"""Fetchers of one thing, in virtual time: they find each other, give each other what they have, and whatever
one of them does costs the others little."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest
from liars import lie
from rows import nightly

from swarm.frames.wire import decode, encode
from swarm.net.blobs.sharing import ASKERS, BlockQuery, Holding
from swarm.net.blobs.sources import LAST
from swarm.net.blobs.store import Blobs
from swarm.net.memory.network import MemoryNetwork
from swarm.net.ports import NetError, Ports, Refused
from swarm.protocol import Service
from swarm.settings.config import DelayLaw
from swarm.sim.clock import run
from swarm.sim.flows import AccessLine
from swarm.sim.links import SimLinks
from swarm.storage.blocks import Blocks, file_block
from swarm.types import PeerId

MBIT = 1e6 / 8
HOME = AccessLine(up=20 * MBIT, down=100 * MBIT)
FILE = Blocks.of(random.Random(1).randbytes(8_000_000), file_block)
ONE_COPY = FILE.size / HOME.up
"""Seconds."""


class Peer:
    """A peer that serves what it has; who gave it how many blocks, and whom it blamed."""

    def __init__(self, ports: Ports, rng: random.Random) -> None:
        self.ports, self.me = ports, ports.me
        self.gave, self.blamed = Counter[int](), list[PeerId]()
        self.blobs = Blobs(
            ports.mail,
            service=Service.PATCHES,
            rng=rng,
            on_bad=lambda peer, why: self.blamed.append(peer),
            reach=ports.reach,
        )

    async def start(self) -> Peer:
        await self.blobs.serve()
        give = self.blobs._sharing._give

        async def counted(sender: PeerId, message: bytes) -> bytes:
            answer = await give(sender, message)
            if (block := decode(answer, Holding).block) is not None:
                self.gave[block] += 1
            return answer

        await self.ports.mail.serve(Service.PATCHES, counted, self.blobs._sharing.turns)
        return self

    async def fetch(self, holders: Sequence[Peer]) -> float:
        """-> the seconds at which all was here."""
        found = await self.blobs.fetch(1, FILE.root, FILE.size, [holder.me for holder in holders])
        assert found == FILE and found.whole == FILE.whole
        return asyncio.get_running_loop().time()


Scene = Callable[[MemoryNetwork, Peer, list[Peer]], Awaitable[None]]


def at_home(scene: Scene, fetchers: int, one_way: int = 0) -> None:
    """A publisher that holds the file, and fetchers at lines of their own, some of which nobody can dial."""

    async def main() -> None:
        names = ["publisher", *(f"fetcher-{k}" for k in range(fetchers))]
        lines = dict.fromkeys(map(PeerId, names), HOME)
        links = SimLinks(DelayLaw(law="constant", seconds=0.04), 125e6, random.Random(1), lines)
        async with MemoryNetwork(random.Random(2), links) as network:
            peers = []
            for k, name in enumerate(names):
                ports = network.ports(name, lambda kind: 0.0, one_way=k > fetchers - one_way)
                peers.append(await Peer(ports, random.Random(name)).start())
            peers[0].blobs.hold(1, FILE)
            await scene(network, peers[0], peers[1:])

    run(main())


def test_many_take_half_as_long_again_as_one() -> None:
    async def scene(network: MemoryNetwork, publisher: Peer, fetchers: list[Peer]) -> None:
        ends = await asyncio.gather(*(one.fetch([publisher]) for one in fetchers))
        assert max(ends) < 1.5 * ONE_COPY
        assert publisher.gave.total() < 1.6 * len(FILE.leaves), "bytes that left it"
        assert set(publisher.gave) == set(range(len(FILE.leaves)))
        assert sum(one.gave.total() for one in fetchers) > 9 * len(FILE.leaves)
        assert not any(one.blamed for one in (publisher, *fetchers))

    at_home(scene, 12)


def test_no_block_is_sent_twice_but_for_the_last_ones() -> None:
    async def scene(network: MemoryNetwork, publisher: Peer, fetchers: list[Peer]) -> None:
        await asyncio.gather(*(one.fetch([publisher]) for one in fetchers))
        sent = sum(one.gave.total() for one in (publisher, *fetchers))
        assert sent <= len(fetchers) * (len(FILE.leaves) + LAST)

    at_home(scene, 6)


def test_one_alone_gets_each_block_once() -> None:
    async def scene(network: MemoryNetwork, publisher: Peer, fetchers: list[Peer]) -> None:
        assert await fetchers[0].fetch([publisher]) < 1.1 * ONE_COPY
        assert publisher.gave == Counter(range(len(FILE.leaves)))

    at_home(scene, 1)


def test_a_publisher_that_dies_when_it_gave_every_block_once_leaves_everybody_with_the_whole() -> None:
    async def scene(network: MemoryNetwork, publisher: Peer, fetchers: list[Peer]) -> None:
        fetching = [asyncio.ensure_future(one.fetch([publisher])) for one in fetchers]
        while len(publisher.gave) < len(FILE.leaves):
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.15)  # two blocks at a time: the last one arrives
        network.crash(publisher.me)
        assert not all(one.done() for one in fetching)
        assert max(await asyncio.gather(*fetching)) < 2 * ONE_COPY

    at_home(scene, 6)


def test_a_publisher_that_dies_earlier_ends_the_fetches_soon_and_what_came_stays() -> None:
    async def scene(network: MemoryNetwork, publisher: Peer, fetchers: list[Peer]) -> None:
        fetching = [asyncio.ensure_future(one.fetch([publisher])) for one in fetchers]
        await asyncio.sleep(ONE_COPY / 2)
        network.crash(publisher.me)
        for one in fetching:
            with pytest.raises(
                NetError, match=r"publisher failed: .*fetcher-\d has none of the missing blocks"
            ):
                await one
        assert asyncio.get_running_loop().time() < ONE_COPY + 30.0
        again = network.ports("publisher", lambda kind: 0.0)
        publisher = await Peer(again, random.Random(3)).start()
        publisher.blobs.hold(1, FILE)
        await asyncio.gather(*(one.fetch([publisher]) for one in fetchers))
        assert len(publisher.gave) < 0.7 * len(FILE.leaves)

    at_home(scene, 3)


@pytest.mark.parametrize("how", ["crashes", *nightly(["stops"]), "is cut off"])
def test_a_fetcher_that_ends_in_the_middle_costs_the_others_nothing(how: str) -> None:
    async def scene(network: MemoryNetwork, publisher: Peer, fetchers: list[Peer]) -> None:
        first, *others = fetchers
        fetching = [asyncio.ensure_future(one.fetch([publisher])) for one in others]
        ends = asyncio.ensure_future(first.fetch([publisher]))
        await asyncio.sleep(ONE_COPY / 2)
        ends.cancel()
        if how == "crashes":
            network.crash(first.me)
        elif how == "is cut off":
            network.links.partition([first.me], [one.me for one in (publisher, *others)])  # type: ignore[attr-defined]
        assert max(await asyncio.gather(*fetching)) < 1.6 * ONE_COPY
        assert not any(one.blamed for one in others)

    at_home(scene, 8)


def test_a_liar_among_the_fellows_costs_a_strike_and_no_more() -> None:
    async def scene(network: MemoryNetwork, publisher: Peer, fetchers: list[Peer]) -> None:
        liar, *others = fetchers
        await lie(liar.ports.mail, bytes(file_block(FILE.size)), Service.PATCHES)
        query = BlockQuery(root=FILE.root, addresses=("/memory/liar",))
        await liar.ports.mail.send(publisher.me, "held/patches", encode(query))  # it is introduced
        ends = await asyncio.gather(*(one.fetch([publisher]) for one in others))
        assert max(ends) < 1.6 * ONE_COPY
        blamed = [who for one in others for who in one.blamed]
        assert set(blamed) == {liar.me} and all(one.blamed.count(liar.me) <= 1 for one in others)

    at_home(scene, 8)


def test_who_cannot_be_dialled_is_introduced_to_nobody_and_gives_to_those_whom_it_asks() -> None:
    async def scene(network: MemoryNetwork, publisher: Peer, fetchers: list[Peer]) -> None:
        open_, hidden = fetchers[:6], fetchers[6:]
        ends = await asyncio.gather(*(one.fetch([publisher]) for one in fetchers))
        assert max(ends) < 2 * ONE_COPY
        introduced = publisher.blobs._shared[FILE.root].fellows(PeerId("?"), 6, random.Random(1))
        assert {fellow.peer for fellow in introduced} <= {one.me for one in open_}
        assert sum(one.gave.total() for one in hidden) > len(FILE.leaves)

    at_home(scene, 10, one_way=4)


def test_who_lacks_a_few_blocks_is_told_of_these_alone() -> None:
    async def scene(network: MemoryNetwork, publisher: Peer, fetchers: list[Peer]) -> None:
        async def ask(**rest: Any) -> Holding:
            query = BlockQuery(root=FILE.root, **rest)
            return decode(
                await fetchers[0].ports.mail.send(publisher.me, "held/patches", encode(query)), Holding
            )

        await ask()
        shared = publisher.blobs._shared[FILE.root]
        shared.begin(FILE.leaves, 0b1)
        told = asyncio.ensure_future(ask(seen=1, wanted=(3, 5)))
        any_more = asyncio.ensure_future(ask(seen=1))
        await asyncio.sleep(1.0)
        shared.add(0b10)
        await asyncio.sleep(1.0)
        assert any_more.done() and not told.done()
        shared.add(1 << 5)
        await asyncio.sleep(1.0)
        assert told.done()

    at_home(scene, 1)


def test_what_a_stranger_names_is_bounded_and_refused() -> None:
    async def scene(network: MemoryNetwork, publisher: Peer, fetchers: list[Peer]) -> None:
        async def ask(query: Any) -> Holding:
            return decode(await fetchers[0].ports.mail.send(publisher.me, "patches", encode(query)), Holding)

        none = await ask(BlockQuery(root=FILE.root, wanted=(len(FILE.leaves), 60_000)))
        assert none.block is None and not none.data
        for wrong in (
            {"type": "blocks", "root": FILE.root, "wanted": [-1]},
            {"type": "blocks", "root": FILE.root, "wanted": [1 << 40]},
            {"type": "blocks", "root": FILE.root, "wanted": list(range(65))},
            {"type": "blocks", "root": FILE.root, "addresses": ["x" * 300]},
            b"?",
        ):
            with pytest.raises(Refused, match="not a BlockQuery"):
                await ask(wrong)
        with pytest.raises(Refused, match="not held here"):
            await ask(BlockQuery(root=FILE.leaves[0]))

    at_home(scene, 1)


def test_of_those_who_ask_the_last_ones_are_remembered_and_few_are_introduced() -> None:
    async def scene(network: MemoryNetwork, publisher: Peer, fetchers: list[Peer]) -> None:
        for k in range(ASKERS + 10):
            ports = network.ports(f"asker-{k}", lambda kind: 0.0)
            query = BlockQuery(root=FILE.root, fellows=1_000_000, addresses=ports.addresses())
            answer = await ports.mail.send(publisher.me, "held/patches", encode(query))
        shared = publisher.blobs._shared[FILE.root]
        assert len(shared._askers) == ASKERS and len(decode(answer, Holding).fellows) == 6
        await asyncio.sleep(61.0)
        assert not shared.fellows(PeerId("?"), 6, random.Random(1)), "who asked long ago is gone"

    at_home(scene, 1)
