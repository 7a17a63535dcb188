"""What a heartbeat says of a fetch and of the line, for whoever watches."""

from __future__ import annotations

import asyncio

import msgspec
from disturbed_fetches import SECOND, over
from nouns import beat
from patch_swarms import BYTES, SIZE, Swarm

from swarm.protocol import Role
from swarm.settings.config import Limits
from swarm.sim.flows import AccessLine
from swarm.storage.blocks import Blocks
from swarm.types import Fetching


def test_a_heartbeat_tells_how_much_of_a_release_is_there() -> None:
    async def promise(swarm: Swarm) -> None:
        late = swarm.host("late")
        await swarm.release(BYTES[0])
        assert late.beats._beat().fetching is None
        taking = swarm.network.tasks.create_task(swarm.take(late, swarm.released[0]))
        told = list[Fetching]()
        while not taking.done():
            await asyncio.sleep(0.02)
            told += filter(None, [late.beats._beat().fetching])
        assert {(one.version, one.size) for one in told} == {(0, SIZE)}
        held = [one.held for one in told]
        assert held == sorted(held) and held[0] == 0 and 0 < held[-1] < SIZE
        await taking
        assert late.beats._beat().fetching is None

    over({"learner": AccessLine(up=SECOND / 20, down=1e9)}, promise)


def test_a_heartbeat_tells_what_its_peer_gives_of_its_line() -> None:
    async def promise(swarm: Swarm) -> None:
        host = swarm.host("home")
        assert (host.beats._beat().upload, host.beats._beat().download) == (0.0, 0.0)
        limits = Limits(upload=15.0, download=80.0)
        host.config = msgspec.structs.replace(
            host.config, peer=msgspec.structs.replace(host.config.peer, limits=limits)
        )
        assert (host.beats._beat().upload, host.beats._beat().download) == (15.0, 80.0)

    over({}, promise)


def test_who_is_heard_to_hold_a_release_while_it_is_fetched_gives_some_of_it() -> None:
    async def promise(swarm: Swarm) -> None:
        late, other = swarm.host("late"), swarm.host("other", Role.LEARNER)
        await other.releases.serve()
        await swarm.release(BYTES[0])
        release = swarm.released[0]
        began = late.now()
        taking = swarm.network.tasks.create_task(swarm.take(late, release))
        await asyncio.sleep(2.0)
        await other.releases.blobs.take(0, Blocks.of(BYTES[0]))
        late.roster.receive(other.ports.me, beat(version=0, weights=release.weights), late.now())
        await taking
        assert late.now() - began < 8.0, "the publisher alone needs 20 s"

    over({"learner": AccessLine(up=SECOND / 20, down=1e9)}, promise)
