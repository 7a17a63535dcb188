"""A disk that refuses records for a while has them all before it is said to be well."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest
from still_host import still_host

from peers.intake import group_log
from peers.intake.group_log import PAUSE, WITHIN, GroupLog
from peers.runtime.host import Host
from swarm.events import AnyEvent, Faulted, Recovered
from swarm.net.memory.network import MemoryNetwork
from swarm.protocol import Role
from swarm.settings.config import DelayLaw
from swarm.sim.clock import run
from swarm.sim.links import SimLinks


class Disk:
    """The functions of `os` that write, of which some calls fail."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.error = 0
        """Of every call, while it is not 0."""
        self.share = 1.0
        """Of the calls that fail."""
        self._rng = Random(1)
        for name in ("write", "fsync"):
            patch.setattr(os, name, self._made(getattr(os, name)))

    def _made(self, real: Any) -> Any:
        def call(descriptor: int, *data: Any) -> Any:
            if self.error and self._rng.random() < self.share:
                raise OSError(self.error, os.strerror(self.error))
            return real(descriptor, *(each[: max(8, len(each) // 2)] for each in data))  # short writes

        return call


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    return Disk(monkeypatch)


def lived(body: Callable[[Host, list[AnyEvent]], Awaitable[None]]) -> list[AnyEvent]:
    """What a learner's host tells while the body runs."""
    told = list[Any]()

    async def live() -> None:
        links = SimLinks(DelayLaw(law="constant", seconds=0.01), 1e9, Random(3))
        async with MemoryNetwork(Random(2), links) as network:
            host = still_host(network, "learner-0", Role.LEARNER)
            host.bus.add(lambda event: told.append(event) if isinstance(event, Faulted | Recovered) else None)
            await body(host, told)

    run(live())
    return told


def read(folder: Path) -> list[bytes]:
    found = list[bytes]()

    async def body(host: Host, _: Any) -> None:
        found.extend(record for _, record in await log_of(host, folder).read())

    lived(body)
    return found


def log_of(host: Host, folder: Path, **more: Any) -> GroupLog:
    return GroupLog(host, folder, 1 << 20, 1 << 26, **more)


def test_what_a_full_disk_refused_is_on_it_before_it_is_said_to_be_well(tmp_path: Path, disk: Disk) -> None:
    places = dict[bytes, int]()

    async def body(host: Host, told: list[AnyEvent]) -> None:
        log = log_of(host, tmp_path)
        writes = asyncio.create_task(log.run())
        host.bus.add(
            lambda event: on_disk.append(len(places)) if isinstance(event, Recovered) else None  # type: ignore[func-returns-value]
        )
        assert await log.keep(b"0")
        disk.error = errno.ENOSPC
        for number in range(1, 30):
            place = lambda segment, record=b"%d" % number: places.update({record: segment})  # noqa: E731
            assert not await log.keep(b"%d" % number, placed=place)
            await host.ports.clock.sleep(0.3)
        assert [type(event) for event in told] == [Faulted] and log.refused and log.owes
        disk.error = 0
        await host.ports.clock.sleep(PAUSE)
        assert not log.refused and not log.owes and {*places.values()} == {*log.segments[1:]}
        writes.cancel()

    on_disk = list[int]()
    assert [type(event) for event in lived(body)] == [Faulted, Recovered]
    assert on_disk == [29] and read(tmp_path) == [b"%d" % number for number in range(30)]


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO, errno.EDQUOT])
def test_errors_that_come_alone_cost_no_record(error: int, tmp_path: Path, disk: Disk) -> None:
    """At 3 % of all calls, with short writes at all others."""
    disk.error, disk.share = error, 0.03

    async def body(host: Host, _: Any) -> None:
        log = log_of(host, tmp_path)
        writes = asyncio.create_task(log.run())
        kept = 0
        for number in range(300):
            kept += await log.keep(b"%d" % number)
            await host.ports.clock.sleep(0.2)
        assert kept > 270
        await host.ports.clock.sleep(3 * PAUSE)
        assert not log.owes
        writes.cancel()

    lived(body)
    assert [*dict.fromkeys(read(tmp_path))] == [b"%d" % number for number in range(300)]


def test_what_waits_for_a_disk_is_bounded_and_the_newest_of_it_is_written(
    tmp_path: Path, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_log, "OWED_BYTES", 1000)
    monkeypatch.setattr(group_log, "AT_ONCE", 250)
    disk.error = errno.EIO

    async def body(host: Host, _: Any) -> None:
        log = log_of(host, tmp_path)
        for number in range(50):
            await log.keep(bytes([number + 1]) * 100)
        assert log._owed_bytes == 1000 == sum(len(entry.record) for entry in log._owed)
        disk.error = 0
        await host.ports.clock.sleep(PAUSE)
        assert await log.keep(b"last") and log._owed_bytes == 0

    lived(body)
    assert [record[0] - 1 for record in read(tmp_path)[:-1]] == [*range(41, 50)], "the last one needs room"


def test_a_group_is_not_on_the_disk_before_the_steps_that_may_have_it(tmp_path: Path, disk: Disk) -> None:
    async def body(host: Host, _: Any) -> None:
        steps = log_of(host, tmp_path / "steps", what="steps")
        groups = log_of(host, tmp_path / "groups", after=steps)
        disk.error = errno.ENOSPC
        assert not await steps.keep(b"step")
        disk.error = 0
        assert not await groups.keep(b"group") and groups.refused
        await host.ports.clock.sleep(PAUSE)
        assert not await groups.keep(b"other")
        assert await steps.keep(b"next")
        await host.ports.clock.sleep(PAUSE)
        assert await groups.keep(b"last")

    lived(body)
    assert read(tmp_path / "groups") == [b"group", b"other", b"last"]


def test_a_write_that_takes_too_long_is_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may come through all the same: nothing is lost, and something may be there twice."""

    async def body(host: Host, _: Any) -> None:
        log = log_of(host, tmp_path)
        work = type(host.ports.work)
        real = work.run

        async def slow(self: Any, *what: Any) -> Any:
            done = await real(self, *what)
            await host.ports.clock.sleep(WITHIN + 1)
            return done

        with monkeypatch.context() as patch:
            patch.setattr(work, "run", slow)
            assert not await log.keep(b"slow")
        await host.ports.clock.sleep(PAUSE)
        assert await log.keep(b"next")

    told = lived(body)
    assert "it took more than 2 s" in told[0].detail  # type: ignore[union-attr]
    assert read(tmp_path) == [b"slow", b"slow", b"next"]
