"""The way into a network whose bootstrap is gone, by the addresses of peers that were met before; on real
nodes."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from typing import Any

import pytest
from hive_world import LOOPBACK, UNLIMITED, HivePorts, HiveWorld, in_world
from hivemind.dht.protocol import DHTProtocol
from hivemind.p2p import P2PContext
from hivemind.proto import dht_pb2
from shared_nodes import Shared, shared_nodes

from swarm.frames.wire import topic
from swarm.membership.identity import open_key
from swarm.net.libp2p import network
from swarm.net.libp2p.listening import free_port
from swarm.net.libp2p.network import WayIn, go_on_alone
from swarm.net.libp2p.node import Node
from swarm.net.ports import NetError, Unreachable
from swarm.settings.config import Listen
from swarm.types import PeerId

SECONDS = 30.0


@pytest.fixture(scope="module")
def shared() -> Iterator[Shared]:
    with shared_nodes(lambda world: world.ports(2)) as run:
        yield run


def nobody_at() -> tuple[PeerId, str]:
    """A peer that is gone, and where it was."""
    peer = PeerId("12D3KooWSmGyvUY4BRQK8E9BgUKp3pS4PLfxCSbvAJK5p7mDFuUX")
    return peer, f"/ip4/127.0.0.1/tcp/{free_port('127.0.0.1')}/p2p/{peer}"


async def start(world: HiveWorld, name: str, bootstrap: str, way_in: WayIn) -> HivePorts:
    key = world.folder / name
    keyring = open_key(key)

    def report(part: str, detail: str, seconds: float | None) -> None:
        world.reports.append((keyring.me, part, detail, seconds))

    node = await Node.start(keyring, key, world.run, LOOPBACK, (bootstrap,), report, UNLIMITED, way_in)
    world.nodes.append(node)
    world.watching.append(asyncio.create_task(node.supervise()))
    return HivePorts(node, keyring)


async def together(*peers: HivePorts) -> None:
    everybody = {peer.me for peer in peers}
    async with asyncio.timeout(SECONDS):
        while not all(everybody - {peer.me} <= peer.node.peers() for peer in peers):
            await asyncio.sleep(0.1)


def test_a_peer_whose_bootstrap_is_gone_enters_by_one_that_it_met(shared: Shared) -> None:
    async def body(world: HiveWorld, peers: list[HivePorts]) -> None:
        other = peers[0]
        back = await start(world, "back", nobody_at()[1], WayIn({other.me: other.addresses()}))
        assert other.me in back.node.peers()
        assert await back.board.put(topic(world.run, "member"), b"value", ttl=60), (
            "the board knows the others too"
        )

    shared(body)


def test_where_nobody_answers_each_address_and_how_often_it_was_tried_is_up_to_the_caller() -> None:
    tries: list[str] = []

    async def again(error: Unreachable) -> bool:
        tries.append(str(error))
        if len(tries) == 3:
            raise error
        return True

    async def body(world: HiveWorld) -> None:
        peer, there = nobody_at()
        (_, bootstrap), more = nobody_at(), [nobody_at()[1] for _ in range(4)]
        with pytest.raises(Unreachable, match=r"connection refused.*; and 2 more"):
            await start(world, "back", bootstrap, WayIn({peer: [there, *more]}, again))
        assert len(tries) == 3 and tries[0].count("connection refused") == 3 and bootstrap in tries[0]

    in_world(body)


def test_a_port_that_another_program_took_is_left_to_it_unless_the_settings_name_it(shared: Shared) -> None:
    async def body(world: HiveWorld, peers: list[HivePorts]) -> None:
        (other,) = peers[0].addresses()[:1]
        with socket.create_server(("127.0.0.1", 0)) as program:
            taken = program.getsockname()[1]
            assert (await start(world, "elsewhere", other, WayIn(port=taken))).node.port != taken
            with pytest.raises(NetError, match=f"TCP port {taken} .* already in use"):
                await world.start("named", (other,), Listen(host="127.0.0.1", port=taken))
        assert (await start(world, "there", other, WayIn(port=taken))).node.port == taken

    shared(body)


def test_a_host_that_is_no_longer_this_machines_is_named_whatever_port_it_had() -> None:
    async def body(world: HiveWorld) -> None:
        key, elsewhere = world.folder / "peer", Listen(host="192.0.2.1")
        way_in = WayIn(port=4711)
        with pytest.raises(NetError, match=r"port 4711 on 192\.0\.2\.1 is not to be had"):
            await Node.start(open_key(key), key, world.run, elsewhere, (), lambda *_: None, UNLIMITED, way_in)

    in_world(body)


def test_one_that_went_on_alone_finds_who_comes_back_and_says_so() -> None:
    async def body(world: HiveWorld) -> None:
        other, port = open_key(world.folder / "other").me, free_port("127.0.0.1")
        met = {other: (f"/ip4/127.0.0.1/tcp/{port}/p2p/{other}",)}
        alone = await start(world, "alone", nobody_at()[1], WayIn(met, go_on_alone))
        assert not alone.node.peers()
        told = [(part, seconds is None) for peer, part, _, seconds in world.reports if peer == alone.me]
        assert told == [("network", True)]
        back = await world.start("other", listen=Listen(host="127.0.0.1", port=port))
        await together(alone, back)
        async with asyncio.timeout(SECONDS):
            while ("network", False) not in told:
                await asyncio.sleep(0.1)
                told = [
                    (part, seconds is None) for peer, part, _, seconds in world.reports if peer == alone.me
                ]

    in_world(body)


def test_what_a_stranger_tells_of_a_peer_and_cannot_be_dialled_ends_nothing(shared: Shared) -> None:
    told = ["/dns4/a..b/tcp/1", f"/dns4/{'a' * 64}/tcp/1", "/ip6/10.0.0.1/tcp/1", "/ip4/localhost/tcp/1"]
    told.append("/ip4/127.0.0.1/tcp/1/p2p/zzz/p2p-circuit")

    async def body(world: HiveWorld, peers: list[HivePorts]) -> None:
        gone = [open_key(world.folder / f"gone {k}").me for k in range(len(told))]
        met = {peer: [f"{address}/p2p/{peer}"] for peer, address in zip(gone, told, strict=True)}
        back = await start(world, "back", peers[0].addresses()[0], WayIn(met))
        for peer in gone:
            await back.node.network.seek([peer])
            with pytest.raises(Unreachable):
                await back.mail.send(peer, "echo", b"", timeout=5.0)
        for made_up in ("0OIl", "z" * 52, "\u00e9" * 52, ""):
            with pytest.raises(Unreachable):
                await back.mail.send(PeerId(made_up), "echo", b"", timeout=5.0)

    shared(body)


ping = DHTProtocol.rpc_ping


async def late_ping(self: Any, request: dht_pb2.PingRequest, context: P2PContext) -> dht_pb2.PingResponse:
    answer = await ping(self, request, context)
    answer.dht_time -= 5.0
    return answer


@pytest.mark.parametrize(
    ("right", "late", "why"),
    [
        (1, 2, "this machine's clock is off, and the others refuse it: .*; set the clock"),
        (0, 2, "this machine's clock is off, and the others refuse it: .*; set the clock"),
        (0, 1, "off from that of the one peer that answered: .*; one of the two is wrong"),
        (1, 1, ""),
        (2, 1, ""),
    ],
)
def test_a_newcomer_whose_clock_is_not_that_of_most_is_kept_out(
    right: int, late: int, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # all are connected, and asked, also where the machine is busy
    monkeypatch.setattr(network, "GRACE", 20.0)

    async def body(world: HiveWorld) -> None:
        # nodes of its own: a newcomer that was let in makes them known to each other
        others = [await world.start(f"right {k}") for k in range(right)]
        with monkeypatch.context() as patch:
            patch.setattr(DHTProtocol, "rpc_ping", late_ping)  # in the processes that are forked next
            others += [await world.start(f"late {k}") for k in range(late)]
        way_in = tuple(other.addresses()[0] for other in others)
        if why:
            with pytest.raises(NetError, match=why):
                await world.start("newcomer", way_in)
        else:
            newcomer = await world.start("newcomer", way_in)
            assert newcomer.node.peers() == {other.me for other in others}

    in_world(body)


def test_two_parts_that_know_each_others_addresses_are_one_again_after_one_seeks(shared: Shared) -> None:
    async def body(world: HiveWorld, peers: list[HivePorts]) -> None:
        first, its = peers
        second = await world.start("second")
        friend = await world.start("of second", bootstrap=second.addresses()[:1])
        assert second.me not in first.node.peers()
        first.node.network.remember(friend.me, friend.addresses())
        await first.node.network.seek([friend.me, its.me])
        await together(first, friend)

    shared(body)
