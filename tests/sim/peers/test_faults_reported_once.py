"""A fault is told once, and again while it lasts, but not once for each version that it concerns."""

from __future__ import annotations

from pathlib import Path
from random import Random

from still_host import still_host

from swarm import events
from swarm.net.blobs.shelves import Held, Shelf
from swarm.net.memory.network import MemoryNetwork
from swarm.protocol import Part, Role
from swarm.settings.config import DelayLaw
from swarm.sim.clock import run
from swarm.sim.links import SimLinks
from swarm.storage.blocks import Blocks


def test_a_disk_that_lost_blocks_of_many_versions_is_told_once(tmp_path: Path) -> None:
    shelf = Shelf(tmp_path, lambda _: None)
    for version in range(1, 57):
        shelf.put(Held.of(version, one := Blocks.of(bytes([version]) * 5000)), one, True)
    for path in tmp_path.iterdir():
        if not path.suffix:
            path.write_bytes(bytes(path.stat().st_size))
    told = list[str]()
    Shelf(tmp_path, told.append)
    (one,) = told
    assert "of version " in one and "and some of 55 more versions, are left out" in one


def test_what_differs_in_a_version_alone_is_one_fault() -> None:
    async def scene() -> list[events.Faulted]:
        seen, bus = list[events.Event](), events.Bus()
        bus.add(seen.append)
        async with MemoryNetwork(Random(1), SimLinks(DelayLaw(), 1e6, Random(1))) as network:
            host = still_host(network, "learner", Role.LEARNER, bus=bus)
            for second in range(90):
                host.disk.damaged(f"block 0 of version {second} ({second:064x}) was never written")
                host.disk.damaged("a record of groups is left out: torn")
                await host.ports.clock.sleep(1.0)
        return [event for event in seen if isinstance(event, events.Faulted)]

    told = run(scene())
    assert {event.part for event in told} == {Part.DISK}
    assert sorted(event.detail[:8] for event in told) == ["a record", "a record", "block 0 ", "block 0 "]
