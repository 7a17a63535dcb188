"""What supervises a node's children, in virtual time: when it asks whom, what it replaces in which order, and
what it tells of that."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import pytest

from swarm.net.libp2p import supervision
from swarm.net.libp2p.network import go_on_alone
from swarm.net.libp2p.supervision import (
    AGAIN_SECONDS,
    BUSY_SECONDS,
    HEALTH_SECONDS,
    LOOK_SECONDS,
    RAN_SECONDS,
    Supervisor,
)
from swarm.net.ports import NetError, Silent
from swarm.sim.clock import run

WHOLE = ["stop", "launch_daemon", "enter", "stop_dht", "launch_dht", "greet"]


def now() -> float:
    return asyncio.get_running_loop().time()


class Waits:
    """For a core, of all children: seconds a question."""

    seconds_each = 0.0

    def __init__(self, _pids: object) -> None:
        pass

    def seconds(self) -> float:
        return self.seconds_each


class Child:
    """A p2pd or a DHT: dead, cut off, hung, or well."""

    pid = 1
    takes = 1.0
    """Seconds of a question to one that hangs."""

    def __init__(self) -> None:
        self.dead = self.cut_off = self.hangs = False
        self.asked: list[float] = []
        """When."""

    def is_alive(self) -> bool:
        return not self.dead

    async def identify(self) -> None:
        self.asked.append(now())
        if self.hangs:
            await asyncio.sleep(self.takes)
            raise Silent("no answer within 1 s")

    async def ask(self, _question: object) -> None:
        await self.identify()


class Node:
    """The children and the network of a node; what the supervisor asks of them is `done`."""

    peers = frozenset({"a-peer"})

    def __init__(self) -> None:
        self.daemon: Child | None = Child()
        self.dht: Child | None = Child()
        self.doubted = asyncio.Event()
        self.done: list[str] = []
        self.refused: list[tuple[str, Exception]] = []
        """What fails next, in turn."""
        self.told: list[tuple[float, str, str, float | None]] = []
        self.supervisor = Supervisor(self, self, lambda *said: self.told.append((now(), *said)))  # type: ignore[arg-type]

    def __getattr__(self, name: str) -> Any:
        async def do(*given: Any) -> None:
            self.done.append(name)
            assert given == {"enter": (go_on_alone,), "greet": (self.peers,)}.get(name, ())
            if self.refused and self.refused[0][0] == name:
                raise self.refused.pop(0)[1]
            await asyncio.sleep(1.0)
            if name in ("stop", "launch_daemon"):
                self.daemon = Child() if name == "launch_daemon" else None
            if name in ("stop", "stop_dht", "launch_dht"):
                self.dht = Child() if name == "launch_dht" else None

        return do

    async def line(self) -> Child | None:
        return self.daemon

    async def live_dht(self) -> Child | None:
        return self.dht


@pytest.fixture(autouse=True)
def _virtual_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervision, "time", SimpleNamespace(monotonic=now))
    monkeypatch.setattr(supervision, "CoreWaits", Waits)


def watched(body: Callable[[Node], Awaitable[None]]) -> Node:
    async def main() -> Node:
        node = Node()
        watching = asyncio.create_task(node.supervisor.watch())
        await body(node)
        assert not watching.done()
        watching.cancel()
        return node

    return run(main())


def test_children_that_are_well_are_asked_every_ten_seconds_and_left_alone() -> None:
    async def body(node: Node) -> None:
        await asyncio.sleep(65.0)
        for child in (node.daemon, node.dht):
            assert child is not None and len(child.asked) == 6

    node = watched(body)
    assert (node.done, node.told, node.supervisor.generation) == ([], [], 0)


def test_after_a_call_without_an_answer_children_are_asked_at_once_and_once() -> None:
    async def body(node: Node) -> None:
        await asyncio.sleep(2.0)
        node.doubted.set()
        await asyncio.sleep(7.0)
        assert node.daemon is not None and len(node.daemon.asked) == 1
        assert node.daemon.asked[0] <= 2.0 + LOOK_SECONDS

    assert watched(body).done == []


@pytest.mark.parametrize(("part", "renewed"), [("p2pd", WHOLE), ("dht", WHOLE[3:])])
@pytest.mark.parametrize("how", ["dead", "hangs", "away"])
def test_a_child_that_is_dead_or_hangs_is_replaced_with_what_stands_on_it(
    part: str, renewed: list[str], how: str
) -> None:
    async def body(node: Node) -> None:
        child = node.daemon if part == "p2pd" else node.dht
        if how == "away":
            setattr(node, "daemon" if part == "p2pd" else "dht", None)
        else:
            setattr(child, how, True)
        await asyncio.sleep(2 * HEALTH_SECONDS)
        assert node.daemon is not None and node.dht is not None

    node = watched(body)
    assert (node.done, node.supervisor.generation) == (renewed, 1)
    (at, fault, why, none), (_, ended, how_it_ended, seconds) = node.told
    assert (fault, none, ended, how_it_ended) == (part, None, part, f"{part} was replaced")
    assert seconds == pytest.approx(len(renewed))
    assert why.startswith(f"{part} lives but does not answer: no answer within") == (how == "hangs")
    assert at <= LOOK_SECONDS or how == "hangs"


@pytest.mark.parametrize("part", ["p2pd", "dht"])
def test_a_child_that_had_no_core_to_answer_on_is_asked_again_and_not_replaced(
    part: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def body(node: Node) -> None:
        child = node.daemon if part == "p2pd" else node.dht
        assert child is not None
        child.hangs = True
        monkeypatch.setattr(Waits, "seconds_each", BUSY_SECONDS)
        await asyncio.sleep(6 * HEALTH_SECONDS)
        assert len(child.asked) > 6 and not node.done
        monkeypatch.setattr(Waits, "seconds_each", BUSY_SECONDS / 2)
        await asyncio.sleep(HEALTH_SECONDS)

    node = watched(body)
    assert node.supervisor.generation == 1 and node.told[0][1] == part


def test_a_child_that_hangs_on_a_machine_that_stays_busy_is_replaced_once_it_had_a_core_for_long_enough(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Waits, "seconds_each", 2 * BUSY_SECONDS)
    monkeypatch.setattr(Child, "takes", 2 * BUSY_SECONDS + RAN_SECONDS / 3)

    async def body(node: Node) -> None:
        child = node.daemon
        assert child is not None
        child.hangs = True
        await asyncio.sleep(6 * HEALTH_SECONDS)
        assert 3 <= len(child.asked) <= 4

    node = watched(body)
    assert node.supervisor.generation == 1


def test_a_p2pd_whose_socket_was_removed_is_replaced_and_says_what_to_spare() -> None:
    async def body(node: Node) -> None:
        assert node.daemon is not None
        node.daemon.cut_off = True
        await asyncio.sleep(10.0)

    node = watched(body)
    assert node.done == WHOLE and "spare hivemind-*" in node.told[0][2]


@pytest.mark.parametrize("refusal", [NetError("port 31337 is taken"), OSError("no memory")])
def test_a_replacement_is_tried_until_it_succeeds_and_counts_then(refusal: Exception) -> None:
    async def body(node: Node) -> None:
        assert node.daemon is not None
        node.daemon.dead = True
        node.refused = [("launch_daemon", refusal), ("launch_dht", refusal)]
        await asyncio.sleep(2 * AGAIN_SECONDS)
        assert node.supervisor.generation == 0
        await asyncio.sleep(4 * AGAIN_SECONDS)

    node = watched(body)
    assert node.done == [*WHOLE[:2], *WHOLE[:5], *WHOLE]
    assert node.supervisor.generation == 1
    assert [(part, seconds is None) for _, part, _, seconds in node.told] == [("p2pd", True)] * 3 + [
        ("p2pd", False)
    ]
    again = [why for _, _, why, _ in node.told[1:3]]
    assert again == [f"p2pd could not be replaced, next try in 5 s: {refusal}"] * 2
    assert node.told[3][3] == pytest.approx(1.0 + 4.0 + 6.0 + 2 * AGAIN_SECONDS)


def test_a_p2pd_that_dies_while_its_dht_is_replaced_is_replaced_too() -> None:
    async def body(node: Node) -> None:
        assert node.daemon is not None and node.dht is not None
        node.dht.dead = True
        node.refused = [("launch_dht", NetError("p2pd is gone"))]
        await asyncio.sleep(1.0)
        node.daemon.dead = True
        await asyncio.sleep(20.0)

    node = watched(body)
    assert node.done == [*WHOLE[3:5], *WHOLE]
    assert node.supervisor.generation == 1


def test_a_dht_that_could_not_be_replaced_is_tried_again_alone_while_its_p2pd_lives() -> None:
    async def body(node: Node) -> None:
        assert node.dht is not None
        node.dht.dead = True
        node.refused = [("launch_dht", OSError("no process"))]
        await asyncio.sleep(20.0)

    assert watched(body).done == [*WHOLE[3:5], *WHOLE[3:]]


def test_a_bug_of_ours_ends_the_watch() -> None:
    async def main() -> None:
        node = Node()
        assert node.dht is not None
        node.dht.dead = True
        node.refused = [("launch_dht", KeyError("ours"))]
        with pytest.raises(KeyError, match="ours"):
            await asyncio.wait_for(node.supervisor.watch(), 20.0)

    run(main())
