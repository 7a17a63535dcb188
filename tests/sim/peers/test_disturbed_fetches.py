"""Fetches that something comes between: a disk that is full, a source that prunes, holders of parts."""

from __future__ import annotations

import asyncio
import errno
import os
from pathlib import Path
from typing import Any

import msgspec
import pytest
from disturbed_fetches import SECOND, over
from patch_swarms import BYTES, SIZE, Swarm, among

from peers.runtime.host import Host
from swarm import events
from swarm.core.agreement.releases import rank
from swarm.protocol import Part, Role
from swarm.sim.flows import AccessLine
from swarm.storage.blocks import Blocks


def received(host: Host) -> int:
    """Bytes of weights since the last call."""
    return sum((host.traffic.drain(host.now(), ()) or {"received": {}})["received"].values())


@pytest.mark.parametrize("why", [errno.ENOSPC, errno.EIO])
def test_a_receiver_whose_disk_is_full_goes_on_by_patches_and_serves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, why: int
) -> None:
    def full(*_: Any, **__: Any) -> Any:
        raise OSError(why, os.strerror(why))

    async def promise(swarm: Swarm) -> None:
        seed, late = swarm.host("seed", Role.SEED, tmp_path), swarm.host("late")
        for blobs in (seed.releases.blobs, seed.releases.patches.files):
            blobs._disk = None  # virtual time knows no threads
        await seed.releases.serve()
        monkeypatch.setattr("swarm.net.blobs.shelves.write_checked", full)
        monkeypatch.setattr("os.pwrite", full)
        await swarm.release(BYTES[0])
        await swarm.take(seed, swarm.released[0])
        await swarm.release(BYTES[1])
        assert await swarm.take(seed, swarm.released[1]) < SIZE / 50
        swarm.network.crash(swarm.learner.ports.me)
        gives = msgspec.structs.replace(swarm.released[1], publisher=seed.ports.me)
        assert await swarm.take(late, gives) > SIZE
        faults = [event for event in swarm.seen if isinstance(event, events.Faulted)]
        assert {event.part for event in faults} == {Part.DISK} and len(faults) <= 2
        assert os.strerror(why) in faults[0].detail
        assert not swarm.blamed

    among(promise)


def test_a_source_that_releases_on_while_it_serves_gives_the_whole_or_the_patches_to_it_once() -> None:
    """A release takes 20 s, and a new one comes every 2 s, of which the source keeps four."""

    async def promise(swarm: Swarm) -> None:
        sampler = swarm.host("sampler")
        await swarm.release(BYTES[0])
        received(sampler)

        async def follow() -> None:
            above: tuple[Any, ...] = ()
            while True:
                for release in swarm.released:
                    sampler.releases.candidates.receive(release)
                if (found := await sampler.releases.obtain(above)) is not None:
                    above = rank(found[0])
                    got.append(found[0].version)
                await asyncio.sleep(0.5)

        got = list[int]()
        following = swarm.network.tasks.create_task(follow())
        for version in BYTES[1:]:
            await asyncio.sleep(2.0)
            await swarm.release(version)
        await asyncio.sleep(20.0)
        following.cancel()
        assert got[-1] == len(BYTES) - 1
        assert received(sampler) < 1.3 * SIZE, "nothing came twice"
        assert not swarm.blamed

    over({"learner": AccessLine(up=SECOND / 20, down=1e9)}, promise)


def test_what_came_from_a_publisher_that_died_is_not_fetched_again_from_another() -> None:
    async def promise(swarm: Swarm) -> None:
        other, late = swarm.host("other", Role.LEARNER), swarm.host("late")
        await other.releases.serve()
        await swarm.release(BYTES[0])
        release = swarm.released[0]
        late.releases.candidates.receive(release)
        received(late)
        fetching = swarm.network.tasks.create_task(late.releases.obtain(()))
        await asyncio.sleep(12.0)
        swarm.network.crash(swarm.learner.ports.me)
        assert await fetching is None
        await other.releases.blobs.take(0, Blocks.of(BYTES[0]))
        late.releases.candidates.receive(msgspec.structs.replace(release, publisher=other.ports.me, groups=2))
        await asyncio.sleep(1.0)
        found = await late.releases.obtain(())
        assert found is not None and found[1].data == BYTES[0]
        # What was under way when the publisher died goes over a line again.
        assert received(late) < 1.4 * SIZE

    over({"learner": AccessLine(up=SECOND / 20, down=1e9)}, promise)
