"""Row `releases`: when the last of n receivers has a version, in copies over one line, in virtual time.

All have a home line, and the stores of blobs are those that ship (swarm.net.blobs.store); beside it stands a
plain server that sends n copies over the same line. Not handled here: real lines, packets.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping, Sequence
from statistics import mean
from typing import TYPE_CHECKING, NamedTuple

from lab.figures.table import Figure, Say

if TYPE_CHECKING:
    from swarm.net.memory.network import MemoryNetwork
    from swarm.storage.blocks import Blocks

UP, DOWN = 20e6 / 8, 100e6 / 8
"""Bytes per second of every line."""

ONE_WAY_TRIP = 0.04
"""Seconds of a message."""

SEEDS = 2

SIZES = {12_000_000: (4, 16, 32)}
"""Bytes -> numbers of receivers."""

HIDDEN = 0.4
"""Share of the receivers that cannot be dialled, in the second figure of each."""


class Outcome(NamedTuple):
    last: float
    """Seconds until the last receiver has all, in those of one copy over one line."""
    given: float
    """Bytes that the publisher sent, in copies."""


def measure(say: Say, sizes: Mapping[int, Sequence[int]] = SIZES, seeds: int = SEEDS) -> list[Figure]:
    found = []
    for size, numbers in sizes.items():
        for receivers in numbers:
            for hidden in sorted({0, round(HIDDEN * receivers)}):
                say(f"{size / 1e6:.0f} MB to {receivers} receivers, {hidden} of them one-way")
                outcomes = [spread(size, receivers, hidden, seed) for seed in range(seeds)]
                found.append(_figure(size, receivers, hidden, outcomes))
    return found


def _figure(size: int, receivers: int, hidden: int, outcomes: Sequence[Outcome]) -> Figure:
    last = [one.last for one in outcomes]
    return Figure(
        row="releases",
        what=f"{size / 1e6:.0f} MB to {receivers}" + (f", {hidden} of them one-way" if hidden else ""),
        value=mean(last),
        unit="copies' time",
        against="a plain server",
        other=float(receivers),
        note=(
            f"{min(last):.2f} to {max(last):.2f}; the publisher sent"
            f" {mean(one.given for one in outcomes):.2f} copies"
        ),
    )


def spread(size: int, receivers: int, hidden: int, seed: int) -> Outcome:
    """A publisher and its receivers, which know it alone; `hidden` of them cannot be dialled."""
    from swarm.net.memory.network import MemoryNetwork
    from swarm.settings.config import DelayLaw
    from swarm.sim.clock import run
    from swarm.sim.flows import AccessLine
    from swarm.sim.links import SimLinks
    from swarm.storage.blocks import Blocks, file_block
    from swarm.types import PeerId

    whole = Blocks.of(random.Random(1).randbytes(size), file_block)
    names = ["publisher", *(f"receiver-{k}" for k in range(receivers))]
    lines = dict.fromkeys(map(PeerId, names), AccessLine(UP, DOWN))

    async def main() -> Outcome:
        links = SimLinks(DelayLaw(law="constant", seconds=ONE_WAY_TRIP), 1e9, random.Random(seed), lines)
        async with MemoryNetwork(random.Random(f"{seed}/gossip"), links) as network:
            return await _play(network, whole, names, hidden, seed)

    return run(main())


async def _play(
    network: MemoryNetwork, whole: Blocks, names: Sequence[str], hidden: int, seed: int
) -> Outcome:
    from peers.runtime.traffic import Traffic
    from swarm.net.blobs.store import Blobs
    from swarm.protocol import Service
    from swarm.types import PeerId

    rng, loop = random.Random(f"{seed}/starts"), asyncio.get_running_loop()
    one_way = set(rng.sample(names[1:], hidden))
    sent, stores = Traffic(0.0), list[Blobs]()
    for name in names:
        ports = network.ports(name, lambda kind: 0.0, one_way=name in one_way)
        mine = ports if stores else sent.counted(ports)
        stores.append(
            Blobs(mine.mail, service=Service.PATCHES, rng=random.Random(f"{seed}/{name}"), reach=ports.reach)
        )
        await stores[-1].serve()
    publisher, *others = stores
    publisher.hold(1, whole)

    async def receive(store: Blobs) -> float:
        await asyncio.sleep(rng.uniform(0.5, 1.5) * ONE_WAY_TRIP)  # the announcement's way
        await store.fetch(1, whole.root, whole.size, [PeerId(names[0])])
        return loop.time()

    ends = await asyncio.gather(*map(receive, others))
    left = (sent.drain(1.0, ()) or {"sent": {}})["sent"].get("weights", 0)
    return Outcome(max(ends) * UP / whole.size, left / whole.size)
