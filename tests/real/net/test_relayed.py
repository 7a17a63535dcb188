"""Relays: dialling over one, and knowing who is connected over one alone."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from typing import Any

import base58
import pytest

pytest.importorskip("hive_world", exc_type=ImportError)

from hive_world import HivePorts, HiveWorld
from hivemind.proto import p2pd_pb2 as pb
from shared_nodes import Shared, echo, shared_nodes

from swarm.frames import wire
from swarm.limits import ID_LIMIT
from swarm.net.libp2p import dialling, p2pd, reachability
from swarm.net.libp2p.addresses import Address, packed
from swarm.net.libp2p.circuits import HOP, MALFORMED, NO_RESERVATION
from swarm.net.messaging.streams import read_message, varint
from swarm.net.ports import Busy, Refused, Unreachable
from swarm.protocol import Service
from swarm.settings.config import Listen


def peer_of(key: bytes) -> str:
    """The id of an Ed25519 key."""
    return base58.b58encode(b"\x00\x24\x08\x01\x12\x20" + key).decode()


NEAR, FAR, BOTH, RELAY = (peer_of(bytes([k]) * 32) for k in range(4))
DIRECT = "/ip4/10.0.0.1/tcp/4001"
CIRCUIT = f"/ip4/10.0.0.2/tcp/4001/p2p/{RELAY}/p2p-circuit"


def test_a_peer_with_a_direct_connection_as_well_is_not_relayed() -> None:
    connections = [(NEAR, DIRECT), (FAR, CIRCUIT), (BOTH, CIRCUIT), (BOTH, DIRECT)]

    class Told(p2pd.Daemon):
        def __init__(self) -> None:
            pass

        async def _ask(self, request: Any, timeout: float) -> Any:
            peers = [
                pb.PeerInfo(id=base58.b58decode(peer), addrs=[packed(text)]) for peer, text in connections
            ]
            return pb.Response(type=pb.Response.OK, peers=peers)

    daemon = Told()
    assert asyncio.run(daemon.connected()) == {NEAR, FAR, BOTH}
    assert daemon.relayed == {FAR}


def test_a_relays_mark_inside_a_key_is_not_a_relay() -> None:
    unlucky = peer_of(b"\xa2\x02" * 16)
    assert not p2pd._over_relay(packed(f"{DIRECT}/p2p/{unlucky}"))
    assert p2pd._over_relay(packed(CIRCUIT))


@pytest.fixture(scope="module")
def shared() -> Iterator[Shared]:
    with shared_nodes(lambda world: world.ports(2)) as run:
        yield run


def test_a_peer_that_nobody_can_dial_is_reached_over_a_member_that_it_found_itself(shared: Shared) -> None:
    """And not before it has reserved there."""

    async def body(world: HiveWorld, peers: list[HivePorts]) -> None:
        relay, _ = peers
        way, hidden = relay.addresses()[:1], Listen(dial_only=True)
        one, two = [await world.start(name, way, hidden) for name in ("one", "two")]
        for peer in (relay, one):
            await peer.node.reachability.serve(peer.mail)
        for peer in (one, two):
            await peer.mail.serve("echo", echo)
        one.node.network.remember(two.me, (f"{way[0]}/p2p-circuit/p2p/{two.me}",))
        with pytest.raises(Unreachable, match="NO_RESERVATION"):
            await one.mail.send(two.me, "echo", b"hi", timeout=20)
        assert one.addresses() == ()
        await one.node.reachability.look(one.mail)
        assert one.addresses() == (f"{way[0]}/p2p-circuit/p2p/{one.me}",)
        two.node.network.remember(one.me, one.addresses())
        for size in (2, 1 << 20):  # p2pd's own relay ends a connection after 128 KiB
            assert await two.mail.send(one.me, "echo", bytes(size), timeout=20) == bytes(size)
        async with asyncio.timeout(15):
            while not (two.node.relayed() == {one.me} and one.node.relayed() == {two.me}):
                await asyncio.sleep(0.1)
        assert relay.node.relayed() == frozenset()
        assert relay.node.carried() > 2 << 20 and one.node.carried() == 0

    shared(body)


def test_a_relay_that_is_asked_for_an_id_too_long_for_one_says_that_this_is_malformed(shared: Shared) -> None:
    def asking_for(target: bytes) -> bytes:
        """HopMessage{type 1 = CONNECT 1, peer 2{id 1}}."""
        peer = b"\x0a" + varint(len(target)) + target
        message = b"\x08\x01\x12" + varint(len(peer)) + peer
        return varint(len(message)) + message

    async def body(world: HiveWorld, peers: list[HivePorts]) -> None:
        relay, stranger = peers
        line = await stranger.node.line()
        for target, status in ((ID_LIMIT, NO_RESERVATION), (ID_LIMIT + 1, MALFORMED), (4000, MALFORMED)):
            reader, writer = await line.open_stream(relay.me, HOP, 5.0)
            writer.write(asking_for(b"\xff" * target))
            async with asyncio.timeout(10):
                answer = await read_message(reader, 100)
            assert answer == b"\x08\x02\x28" + varint(status), target
            writer.close()

    shared(body)


@pytest.mark.parametrize(
    ("name", "listen"),
    [("does not want to", Listen(host="127.0.0.1", relay=False)), ("only dials", Listen(dial_only=True))],
)
def test_who_is_no_relay_says_so(name: str, listen: Listen, shared: Shared) -> None:
    async def body(world: HiveWorld, peers: list[HivePorts]) -> None:
        way, other = peers
        relay = await world.start(name, way.addresses()[:1], listen)
        await relay.node.reachability.serve(relay.mail)
        relay.node.network.remember(other.me, other.addresses())
        await relay.node.network.seek([other.me])
        with pytest.raises(Refused, match="this peer is no relay"):
            await other.mail.send(relay.me, Service.RELAY, b"", timeout=20)

    shared(body)


def test_a_peer_is_dialled_back_at_the_host_it_comes_from_and_not_too_often(shared: Shared) -> None:
    async def body(world: HiveWorld, peers: list[HivePorts]) -> None:
        _, one = peers
        await one.node.reachability.serve(one.mail)
        two = await world.start("two that listens", one.addresses()[:1])
        assert two.node.reachability.open is None
        await two.node.reachability.look(two.mail)
        assert two.node.reachability.open and not two.node.reachability.relays
        with socket.create_server(("127.0.0.1", 0)) as deaf:
            closed = nobody_listens()
            asked = wire.encode(reachability.DialQuery(ports=(closed, deaf.getsockname()[1])))
            said = await two.mail.send(one.me, Service.DIALBACK, asked, timeout=20)
        told = wire.decode(said, reachability.DialAnswer)
        assert [end.split("/")[2] for end in told.seen] == ["127.0.0.1"]
        refused, silent = told.dialled
        assert refused.why == "connection refused (nothing listens on that port)"
        assert silent.why.startswith("timed out"), "it takes connections, and is no libp2p"
        with pytest.raises(Busy, match="asked too often"):
            for _ in range(3):
                await two.mail.send(one.me, Service.DIALBACK, asked, timeout=20)

    shared(body)


def test_of_two_ways_the_one_that_answers_is_taken_and_a_relay_waits_for_it() -> None:
    tried: list[tuple[str, float]] = []

    async def reach(address: Address) -> str:
        tried.append((address.host, asyncio.get_running_loop().time()))
        if address.host == "10.0.0.9":
            await asyncio.sleep(3600)
        return "" if address.host == "10.0.0.2" else "connection refused"

    async def main() -> list[str]:
        texts = [f"/ip4/10.0.0.9/tcp/1/p2p/{FAR}", f"/ip4/10.0.0.3/tcp/1/p2p/{FAR}", f"{CIRCUIT}/p2p/{FAR}"]
        return await dialling.until_reached(reach, [address for t in texts if (address := Address.parse(t))])

    assert asyncio.run(main()) == [dialling.CUT, "connection refused", ""]
    (_, first), _, (last, late) = tried
    assert last == "10.0.0.2" and late - first >= dialling.HEAD_START - 0.01


def nobody_listens() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
