"""Fetchers of one thing over real nodes: the publisher introduces them, and its line carries less than a copy
for each."""

from __future__ import annotations

import asyncio
import random

from hive_world import HivePorts, HiveWorld

from swarm.net.blobs.store import Blobs
from swarm.net.ports import Reach
from swarm.protocol import Service
from swarm.settings.config import Limits
from swarm.storage.blocks import Blocks, file_block

FILE = Blocks.of(random.Random(1).randbytes(4_000_000), file_block)


async def store(ports: HivePorts) -> Blobs:
    reach = Reach(ports.addresses, ports.node.network.introduce)
    blobs = Blobs(ports.mail, service=Service.PATCHES, reach=reach)
    await blobs.serve()
    return blobs


def test_fetchers_that_know_their_publisher_alone_give_each_other_blocks() -> None:
    async def main() -> None:
        world = HiveWorld("fellows")
        try:
            publisher = await world.start("publisher", limits=Limits(upload=10.0))
            fetchers = [await world.start(f"fetcher-{k}", publisher.addresses()[:1]) for k in range(3)]
            source, *stores = [await store(one) for one in (publisher, *fetchers)]
            source.hold(1, FILE)
            async with asyncio.timeout(60):
                found = await asyncio.gather(
                    *(blobs.fetch(1, FILE.root, FILE.size, [publisher.me]) for blobs in stores)
                )
            assert all(one.whole == FILE.whole for one in found)
            given = [blobs._shared[FILE.root]._given.total() for blobs in (source, *stores)]
            assert given[0] < 2.5 * len(FILE.leaves) and sum(given[1:]) > len(FILE.leaves) / 2, given
            told = {one.me: one.addresses()[:2] for one in fetchers}
            hints = [dict(one.node.network._hints) for one in fetchers]
            assert any(hints) and all(told[peer] == where for hint in hints for peer, where in hint.items())
        finally:
            await world.close()

    asyncio.run(main())
