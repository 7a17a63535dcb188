"""Relays: dialling over one, and knowing who is connected over one alone."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import base58
import pytest

hive_world = pytest.importorskip("hive_world", exc_type=ImportError)

from hivemind.proto import p2pd_pb2 as pb  # noqa: E402

from swarm.frames import wire  # noqa: E402
from swarm.limits import ID_LIMIT  # noqa: E402
from swarm.net.libp2p import dialling, p2pd, reachability  # noqa: E402
from swarm.net.libp2p.addresses import Address, packed  # noqa: E402
from swarm.net.libp2p.circuits import HOP, MALFORMED, NO_RESERVATION  # noqa: E402
from swarm.net.messaging.streams import read_message, varint  # noqa: E402
from swarm.net.ports import Busy, Refused, Unreachable  # noqa: E402
from swarm.protocol import Service  # noqa: E402
from swarm.settings.config import Listen  # noqa: E402
from swarm.types import PeerId  # noqa: E402


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


def test_a_peer_that_nobody_can_dial_is_reached_over_a_member_that_it_found_itself() -> None:
    async def main() -> None:
        world = hive_world.HiveWorld("relay")
        try:
            relay = await world.start("relay", (), Listen(host="127.0.0.1"))
            way, hidden = relay.addresses()[:1], Listen(dial_only=True)
            one, two = [await world.start(name, way, hidden) for name in ("one", "two")]
            for peer in (relay, one):
                await peer.node.reachability.serve(peer.mail)
            await one.mail.serve("echo", echo)
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
        finally:
            await world.close()

    asyncio.run(main())


def test_nobody_is_connected_with_a_peer_that_did_not_reserve() -> None:
    async def main() -> None:
        world = hive_world.HiveWorld("relay")
        try:
            relay = await world.start("relay", (), Listen(host="127.0.0.1"))
            hidden = Listen(dial_only=True)
            one, two = [await world.start(name, relay.addresses()[:1], hidden) for name in ("one", "two")]
            await one.mail.serve("echo", echo)
            two.node.network.remember(one.me, (f"{relay.addresses()[0]}/p2p-circuit/p2p/{one.me}",))
            with pytest.raises(Unreachable, match="NO_RESERVATION"):
                await two.mail.send(one.me, "echo", b"hi", timeout=20)
        finally:
            await world.close()

    asyncio.run(main())


def test_a_relay_that_is_asked_for_an_id_too_long_for_one_says_that_this_is_malformed() -> None:
    def asking_for(target: bytes) -> bytes:
        """HopMessage{type 1 = CONNECT 1, peer 2{id 1}}."""
        peer = b"\x0a" + varint(len(target)) + target
        message = b"\x08\x01\x12" + varint(len(peer)) + peer
        return varint(len(message)) + message

    async def main() -> None:
        world = hive_world.HiveWorld("relay")
        try:
            relay = await world.start("relay", (), Listen(host="127.0.0.1"))
            stranger = await world.start("stranger", relay.addresses()[:1])
            line = await stranger.node.line()
            for target, status in ((ID_LIMIT, NO_RESERVATION), (ID_LIMIT + 1, MALFORMED), (4000, MALFORMED)):
                reader, writer = await line.open_stream(relay.me, HOP, 5.0)
                writer.write(asking_for(b"\xff" * target))
                async with asyncio.timeout(10):
                    answer = await read_message(reader, 100)
                assert answer == b"\x08\x02\x28" + varint(status), target
                writer.close()
        finally:
            await world.close()

    asyncio.run(main())


@pytest.mark.parametrize(
    ("listen", "why"),
    [
        (Listen(host="127.0.0.1", relay=False), "this peer is no relay"),
        (Listen(dial_only=True), "this peer is no relay"),
    ],
)
def test_who_is_no_relay_says_so(listen: Listen, why: str) -> None:
    async def main() -> None:
        world = hive_world.HiveWorld("relay")
        try:
            way = (await world.start("way")).addresses()[:1]
            relay = await world.start("relay", way, listen)
            await relay.node.reachability.serve(relay.mail)
            other = await world.start("other", way)
            relay.node.network.remember(other.me, other.addresses())
            await relay.node.network.seek([other.me])
            with pytest.raises(Refused, match=why):
                await other.mail.send(relay.me, Service.RELAY, b"", timeout=20)
        finally:
            await world.close()

    asyncio.run(main())


def test_a_peer_is_dialled_back_at_the_host_it_comes_from_and_not_too_often() -> None:
    async def main() -> None:
        world = hive_world.HiveWorld("dialback")
        try:
            one = await world.start("one")
            await one.node.reachability.serve(one.mail)
            two = await world.start("two", one.addresses()[:1])
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
        finally:
            await world.close()

    asyncio.run(main())


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


async def echo(sender: PeerId, message: bytes) -> bytes:
    return message


def nobody_listens() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
