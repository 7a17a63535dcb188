"""What a sampler made is delivered though it was killed: samplers with disks on the ports of memory."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pytest
from nouns import group
from role_swarms import EPOCH, scenario
from still_host import still_host

from peers.commands import sim
from peers.intake import group_log
from peers.sampler.outbox import SEGMENT_BYTES, Outbox
from swarm.core.group_accounts import audit
from swarm.events import AnyEvent, Faulted, Judged, Recovered, Sampled
from swarm.net.memory.network import MemoryNetwork
from swarm.protocol import Role
from swarm.settings.config import Delay, DelayLaw
from swarm.sim.clock import run
from swarm.sim.links import SimLinks
from swarm.sim.scenario import Fault
from swarm.sim.world import World
from swarm.types import Digest, PeerId

LEARNER = PeerId("learner-0")
OLD = Digest("1" * 64)
SLOW = Delay(upload=DelayLaw(law="constant", seconds=5.0))
"""Groups are under way for so long."""


def played(disks: Path | None) -> list[AnyEvent]:
    told: list[Any] = []
    kills = (
        Fault(at=at, fault="bounce", peer=f"sampler-{k % 3}", down=1.0) for k, at in enumerate((16, 27, 38))
    )
    World(scenario(1.1, (2, 3), *kills, delay=SLOW), sim.spawn, sinks=[told.append], disks=disks).run()
    return told


def undelivered(told: list[AnyEvent]) -> set[str]:
    sampled = {event.group for event in told if isinstance(event, Sampled) and event.at - EPOCH < 50}
    return sampled - {event.group for event in told if isinstance(event, Judged)}


def test_a_sampler_that_is_killed_delivers_what_was_under_way(tmp_path: Path) -> None:
    told = played(tmp_path)
    assert not undelivered(told)
    assert audit(told).passed and audit(told).once > 30


def test_without_a_disk_what_was_under_way_is_gone() -> None:
    assert undelivered(played(None))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "outbox"


def lives(*each: Any) -> None:
    """One life of a sampler's host after the other."""

    async def live() -> None:
        for life in each:
            links = SimLinks(DelayLaw(law="constant", seconds=0.01), 1e9, Random(3))
            async with MemoryNetwork(Random(2), links) as network:
                await life(still_host(network, "sampler-0", Role.SAMPLER))

    run(live())


def test_the_next_life_has_what_is_not_done_and_who_may_have_it(folder: Path) -> None:
    made = [group(seed) for seed in range(3)]

    async def first(host: Any) -> None:
        outbox = Outbox(host, folder, 8)
        assert await outbox.open() == []
        await asyncio.gather(*map(outbox.add, made))
        await outbox.sent(made[1].id, LEARNER)
        await outbox.done(made[0].id)

    async def second(host: Any) -> None:
        outbox = Outbox(host, folder, 8)
        assert await outbox.open() == [(made[1], LEARNER), (made[2], None)]
        await outbox.add(made[1])  # it is there
        await outbox.done(made[1].id)
        await outbox.done(made[2].id)

    async def third(host: Any) -> None:
        assert await Outbox(host, folder, 8).open() == []

    lives(first, second, third)
    assert sum(path.stat().st_size for path in folder.iterdir()) < SEGMENT_BYTES


def test_a_disk_that_takes_groups_again_is_told_to_be_back(folder: Path) -> None:
    async def life(host: Any) -> None:
        host.bus.add(lambda event: told.append(type(event)))
        outbox = Outbox(host, folder, 8)
        await outbox.open()
        in_the_way()
        await outbox.add(group(1))
        out_of_the_way()
        await host.ports.clock.sleep(group_log.PAUSE)
        await outbox.add(group(2))

    told: list[type[AnyEvent]] = []
    in_the_way, out_of_the_way = partial(folder.write_bytes, b""), folder.unlink
    lives(life)
    assert told == [Faulted, Recovered]


def test_the_next_life_goes_on_with_the_count_of_draws(folder: Path) -> None:
    made = group(7)

    async def first(host: Any) -> None:
        outbox = Outbox(host, folder, 8)
        await outbox.open()
        await outbox.count(OLD, 3)
        await outbox.count(made.weights, 2)
        await outbox.add(made)  # a machine that crashed may forget the count and have the group
        await outbox.done(made.id)

    async def second(host: Any) -> None:
        outbox = Outbox(host, folder, 8)
        await outbox.open()
        assert outbox.drawn == {OLD: 3, made.weights: 8}

    lives(first, second)


def test_a_segment_that_goes_takes_no_count_with_it(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("peers.sampler.outbox.SEGMENT_BYTES", 1)  # each record begins a segment

    async def first(host: Any) -> None:
        outbox = Outbox(host, folder, 8)
        await outbox.open()
        await outbox.add(group(0))
        await outbox.count(OLD, 3)
        await outbox.done(group(0).id)

    async def later(host: Any) -> None:
        outbox = Outbox(host, folder, 8)
        await outbox.open()
        assert outbox.drawn[OLD] == 3
        await outbox.add(group(1))
        await outbox.done(group(1).id)

    lives(first, later, later, later)


def test_what_a_life_says_of_the_groups_of_the_one_before_outlives_it(folder: Path) -> None:
    made = [group(seed) for seed in range(2)]

    async def first(host: Any) -> None:
        outbox = Outbox(host, folder, 8)
        await outbox.open()
        for one in made:
            await outbox.add(one)

    async def second(host: Any) -> None:
        outbox = Outbox(host, folder, 8)
        await outbox.open()
        await outbox.done(made[0].id)
        await outbox.sent(made[1].id, LEARNER)

    async def later(host: Any) -> None:
        assert await Outbox(host, folder, 8).open() == [(made[1], LEARNER)]

    async def last(host: Any) -> None:
        outbox = Outbox(host, folder, 8)
        await outbox.open()
        await outbox.done(made[1].id)

    lives(first, second, later, later, later, last)
    assert len([*folder.iterdir()]) == 1


def test_what_is_done_while_the_disk_fails_is_done_once_it_is_back(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A write of `late` takes longer than anybody waits, and comes through all the same."""
    kept, late, after = (group(seed) for seed in range(3))

    async def first(host: Any) -> None:
        outbox = Outbox(host, folder, 8)
        await outbox.open()
        await outbox.add(kept)
        work = type(host.ports.work)
        run = work.run

        async def slow(self: Any, *what: Any) -> Any:
            done = await run(self, *what)
            await host.ports.clock.sleep(group_log.WITHIN + 1)
            return done

        monkeypatch.setattr(work, "run", slow)
        await outbox.add(late)
        monkeypatch.undo()
        await outbox.done(late.id)
        await outbox.done(kept.id)
        await host.ports.clock.sleep(group_log.PAUSE + 1)
        await outbox.add(after)
        await outbox.done(after.id)

    async def second(host: Any) -> None:
        assert await Outbox(host, folder, 8).open() == []

    lives(first, second)


def test_segments_without_a_record_go_with_the_next_life(folder: Path) -> None:
    async def life(host: Any) -> None:
        outbox = Outbox(host, folder, 8)
        assert await outbox.open() == []

    folder.mkdir()
    for number in range(5):
        (folder / f"{number:08}.log").write_bytes(b"torn")
    lives(life)
    assert not [*folder.iterdir()]


def test_that_a_group_is_done_is_written_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[object] = []
    keep = group_log.GroupLog.keep

    async def kept(log: Any, record: bytes, *how: Any, **more: Any) -> bool:
        written.append(msgspec.msgpack.decode(record)["type"])
        return await keep(log, record, *how, **more)

    monkeypatch.setattr(group_log.GroupLog, "keep", kept)

    async def life(host: Any) -> None:
        outbox = Outbox(host, folder, 8)
        await outbox.open()
        for seed in range(3):
            await outbox.add(group(seed))
            await outbox.done(group(seed).id)
        await outbox.done(group(9).id)

    lives(life)
    assert written == ["added", "done"] * 3
