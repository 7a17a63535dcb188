"""Real nodes in homes behind NATs (tests/support/home_networks.py): how they reach each other."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from home_networks import Internet, Place, internet
from places import ROOT, SUPPORT

SECONDS = 150.0
PORT = 31337
PROGRAM = SUPPORT / "home_node.py"


MOVED = 25.0
"""Seconds in which a node with another address is back; p2pd's own probes find a dead connection after 30 to
40."""


class HomeNode:
    def __init__(self, place: Place, folder: Path, name: str, *bootstrap: str, **listen: object) -> None:
        how = json.dumps({"port": PORT, "host": "0.0.0.0", **listen})
        words = [*place.inside, sys.executable, str(PROGRAM), name, str(folder), how, *bootstrap]
        self.process = subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT
        )
        self.first = self._line()
        self.peer = self.first["peer"]

    def do(self, what: str, **more: Any) -> dict[str, Any]:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"do": what, **more}) + "\n")
        self.process.stdin.flush()
        return self._line()

    def until(self, wanted: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
        deadline = time.monotonic() + SECONDS
        while not wanted(status := self.do("status")):
            assert time.monotonic() < deadline, json.dumps(status)
            time.sleep(0.2)
        return status

    def asks(self, other: HomeNode, until: float) -> None:
        """Get an answer of another one, before a time of time.monotonic()."""
        while "size" not in (said := self.do("ask", peer=other.peer, size=10, timeout=2)):
            assert time.monotonic() < until, said

    def end(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(SECONDS)

    def _line(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        return dict(json.loads(self.process.stdout.readline()))


class Homes:
    """A seed with a public address, and nodes in homes that know it."""

    def __init__(self, net: Internet, folder: Path) -> None:
        self.net, self.folder = net, folder
        self.nodes: list[HomeNode] = []
        self._names = map(str, itertools.count())
        self.seed_at = net.machine()
        self.seed = self.node(self.seed_at)

    def node(self, place: Place) -> HomeNode:
        way = [f"/ip4/{self.seed_at.address}/tcp/{PORT}/p2p/{self.nodes[0].peer}"] if self.nodes else []
        self.nodes.append(HomeNode(place, self.folder, next(self._names), *way))
        return self.nodes[-1]

    def end(self, left: int) -> None:
        """All nodes but for the first ones."""
        while len(self.nodes) > left:
            self.nodes.pop().end()


def tell_each_other(one: HomeNode, *others: HomeNode) -> None:
    """What their heartbeats say."""
    for other in others:
        other.do("met", peer=one.peer, addresses=one.do("status")["addresses"][:2])
        one.do("met", peer=other.peer, addresses=other.do("status")["addresses"][:2])


@pytest.fixture(scope="module")
def seeded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Homes]:
    with internet() as net:
        made = Homes(net, tmp_path_factory.mktemp("homes"))
        try:
            yield made
        finally:
            made.end(0)


@pytest.fixture
def homes(seeded: Homes) -> Iterator[Homes]:
    """The seed's internet, in which a test has homes and nodes of its own."""
    try:
        yield seeded
    finally:
        seeded.end(1)


@pytest.mark.timeout(400)
def test_two_homes_reach_each_other_over_a_member_that_both_can_dial(homes: Homes) -> None:
    here, there = homes.net.home(), homes.net.home()
    one, two = homes.node(here), homes.node(there)
    told = one.until(lambda status: status["relays"])
    assert told["open"] is False and told["relays"] == [homes.seed.peer]
    assert told["seen"] == {homes.seed.peer: [f"/ip4/{here.outside}/tcp/{PORT}"]}
    over = f"/ip4/{homes.seed_at.address}/tcp/{PORT}/p2p/{homes.seed.peer}/p2p-circuit/p2p/{one.peer}"
    beside = f"/ip4/{here.address}/tcp/{PORT}/p2p/{one.peer}"
    assert told["addresses"][:2] == [over, beside]
    assert homes.seed.until(lambda status: status["open"])["addresses"][0].startswith(
        f"/ip4/{homes.seed_at.address}/"
    )

    two.do("met", peer=one.peer, addresses=told["addresses"][:2])
    assert two.do("ask", peer=one.peer, size=4 << 20)["size"] == 4 << 20
    assert two.until(lambda status: status["relayed"])["relayed"] == [one.peer]
    assert one.do("ask", peer=two.peer, size=10)["size"] == 10, "the connection serves both"


@pytest.mark.timeout(400)
def test_a_home_with_a_forwarded_port_learns_its_public_address_and_needs_no_relay(homes: Homes) -> None:
    here, there = homes.net.home(), homes.net.home()
    homes.net.forward(here, PORT)
    one, two = homes.node(here), homes.node(there)
    told = one.until(lambda status: status["open"])
    public = f"/ip4/{here.outside}/tcp/{PORT}/p2p/{one.peer}"
    assert told["addresses"][0] == public and told["relays"] == []
    two.do("met", peer=one.peer, addresses=told["addresses"][:2])
    assert two.do("ask", peer=one.peer, size=10)["size"] == 10
    assert two.until(lambda status: one.peer in status["peers"])["relayed"] == []


@pytest.mark.timeout(400)
@pytest.mark.parametrize("behind", [False, True], ids=["public", "behind a router"])
def test_one_whose_address_changes_is_back_long_before_p2pd_finds_its_dead_connections(
    homes: Homes, behind: bool
) -> None:
    here = homes.net.home() if behind else homes.net.machine()
    moves, other = homes.node(here), homes.node(homes.net.machine())
    others = (homes.seed, other)
    moves.until(lambda status: status["relays"] if behind else status["open"])
    tell_each_other(moves, *others)
    for one in others:
        one.asks(moves, time.monotonic() + SECONDS)

    there, began = homes.net.move(here, 77), time.monotonic()
    told = f"/ip4/{there.address}/tcp/{PORT}/p2p/{moves.peer}"
    gone = f"/ip4/{here.address}/"
    moves.until(
        lambda status: (
            told in status["addresses"] and not any(text.startswith(gone) for text in status["addresses"])
        )
    )
    for one in others:
        moves.asks(one, began + MOVED)
    tell_each_other(moves, *others)
    for one in others:
        one.asks(moves, began + MOVED)


@pytest.mark.timeout(400)
def test_who_tells_a_forwarded_port_is_found_in_its_own_home_where_the_router_leads_nobody_back(
    homes: Homes, tmp_path: Path
) -> None:
    net = homes.net
    here = net.home()
    net.forward(here, PORT)
    public = f"/ip4/{here.outside}/tcp/{PORT}"
    nodes = [HomeNode(here, tmp_path, "seed", announce=[public])]
    try:
        told = nodes[0].first["addresses"]
        beside = f"/ip4/{here.address}/tcp/{PORT}"
        assert told == [f"{way}/p2p/{nodes[0].peer}" for way in (public, beside)]
        for place in (net.machine(), net.beside(here)):
            nodes.append(HomeNode(place, tmp_path, place.space, *told))
            nodes[-1].until(lambda status: nodes[0].peer in status["peers"])
    finally:
        for node in reversed(nodes):
            node.end()


@pytest.mark.timeout(400)
def test_a_node_at_all_interfaces_is_dialled_by_ipv6_and_by_ipv4(homes: Homes, tmp_path: Path) -> None:
    net = homes.net
    both, six, four = [net.machine() for _ in range(3)]
    nodes = [HomeNode(both, tmp_path, "both", host="::")]
    told = [text for text in nodes[0].first["addresses"] if "/127.0.0.1/" not in text and "/::1/" not in text]
    try:
        assert sorted(text.split("/")[1] for text in told) == ["ip4", "ip6"]
        for place, host in ((six, "::"), (four, "0.0.0.0")):
            kind = "/ip6/" if host == "::" else "/ip4/"
            way = next(text for text in told if text.startswith(kind))
            nodes.append(HomeNode(place, tmp_path, place.space, way, host=host))
            status = nodes[-1].until(lambda status: nodes[0].peer in status["seen"])
            assert all(end.startswith(kind) for end in status["seen"][nodes[0].peer])
    finally:
        for node in reversed(nodes):
            node.end()
