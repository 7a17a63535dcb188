"""A node whose children are killed while it starts: it is there all the same, with all of its services."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hive_world import HivePorts, HiveWorld
from shared_nodes import Shared, echo, shared_nodes

from swarm.net.averaging import averager
from swarm.net.libp2p.dht import ChildDHT
from swarm.net.libp2p.p2pd import Daemon
from swarm.net.ports import NetError, RoundLost
from swarm.processes import process
from swarm.processes.process import STARTS
from swarm.protocol import Part
from swarm.settings.config import Averaging

SERVICES = [f"service-{number}" for number in range(4)]


@pytest.fixture(scope="module")
def shared() -> Iterator[Shared]:
    with shared_nodes(lambda world: world.ports(1)) as run:
        yield run


class Killer:
    """Before the `number`-th of these calls, the process that is asked is killed, `times` in a row."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, number: int, times: int = 1) -> None:
        self._left, self._times = number, times
        self.armed = False
        self.spared: frozenset[int] = frozenset()
        for kind, name in (
            (Daemon, "_call"),
            (Daemon, "add_binary_stream_handler"),
            (ChildDHT, "_asked"),
        ):
            monkeypatch.setattr(kind, name, self._before(getattr(kind, name)))

    def _before(self, call: Callable[..., Any]) -> Callable[..., Any]:
        async def asked(child: Any, *args: Any) -> Any:
            if self.armed and child.pid not in self.spared:
                self._left -= 1
                if self._left <= 0 and self._times > 0:
                    self._times -= 1
                    os.kill(child.pid, signal.SIGKILL)
            return await call(child, *args)

        return asked


@pytest.mark.parametrize("number", range(1, 11))
def test_a_child_that_is_killed_while_its_node_starts_is_replaced(
    monkeypatch: pytest.MonkeyPatch, number: int, shared: Shared
) -> None:
    killer = Killer(monkeypatch, number)

    async def body(world: HiveWorld, peers: list[HivePorts]) -> None:
        (first,) = peers
        killer.armed, killer.spared = True, frozenset(first.node.pids().values())
        second = await world.start(f"second {number}", first.addresses()[:1])
        for service in SERVICES:
            await second.mail.serve(service, echo)
        killer.armed = False
        await answers(first, second)
        while not (told := [part for peer, part, _, _ in world.reports if peer == second.me]):
            await first.clock.sleep(0.1)
        assert {*told} <= {Part.P2PD, Part.DHT, Part.NETWORK}

    shared(body)


async def answers(first: HivePorts, second: HivePorts) -> None:
    """The second node serves all of its services."""
    for service in SERVICES:
        for left in reversed(range(40)):
            try:
                assert await first.mail.send(second.me, service, b"here", timeout=3.0) == b"here"
                break
            except NetError:
                if not left:
                    raise
                await first.clock.sleep(0.5)
                first.node.network.remember(second.me, second.addresses())


def test_one_that_is_killed_each_time_ends_the_start_with_its_reason(
    monkeypatch: pytest.MonkeyPatch, shared: Shared
) -> None:
    killer = Killer(monkeypatch, 1, STARTS)

    async def body(world: HiveWorld, peers: list[HivePorts]) -> None:
        killer.armed, killer.spared = True, frozenset(peers[0].node.pids().values())
        with pytest.raises(NetError, match="p2pd of this peer is gone"):
            await world.start("one")

    shared(body)


@pytest.mark.parametrize("times", [1, STARTS])
def test_an_averager_whose_process_is_killed_while_it_starts_is_there_unless_it_is_killed_each_time(
    monkeypatch: pytest.MonkeyPatch, times: int, shared: Shared
) -> None:
    left = [times]

    def started(*given: Any, **named: Any) -> process.Child:
        child = start(*given, **named)
        if left[0]:
            left[0] -= 1
            child.kill()
        return child

    start = process.Child

    async def body(world: HiveWorld, peers: list[HivePorts]) -> None:
        (one,) = peers
        monkeypatch.setattr(process, "Child", started)
        told: list[str] = []
        mine = averager.HiveAverager(
            one.node.control, one.node.listen, "x", 8, 4, Averaging(), lambda *said: told.append(said[1])
        )
        try:
            if times == STARTS:
                with pytest.raises(RoundLost, match="SIGKILL"):
                    await mine.start()
            else:
                await mine.start()
                assert mine.pid() is not None
        finally:
            await mine.close()
        assert len(told) == min(times, STARTS - 1) and all("SIGKILL" in why for why in told)

    shared(body)
