"""Relays: dialling over one, and knowing who is connected over one alone."""

from __future__ import annotations

import asyncio
from typing import Any

import base58
import pytest

hive_world = pytest.importorskip("hive_world", exc_type=ImportError)

from hivemind.proto import p2pd_pb2 as pb  # noqa: E402

from swarm.config import Listen  # noqa: E402
from swarm.net import p2pd  # noqa: E402
from swarm.net.addresses import packed  # noqa: E402
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


def test_a_peer_that_nobody_can_dial_is_reached_over_a_relay_and_both_know_it() -> None:
    async def echo(sender: PeerId, message: bytes) -> bytes:
        return message

    async def main() -> None:
        world = hive_world.HiveWorld("relay")
        try:
            relay = await world.start("relay", (), Listen(host="127.0.0.1", relay=True))
            way, hidden = relay.addresses()[:1], Listen(dial_only=True, relay=True)
            one, two = [await world.start(name, way, hidden) for name in ("one", "two")]
            await one.mail.serve("echo", echo)
            two.node.network.remember(one.me, (f"{way[0]}/p2p-circuit/p2p/{one.me}",))
            assert await two.mail.send(one.me, "echo", b"hi", timeout=20) == b"hi"
            async with asyncio.timeout(15):
                while not (two.node.relayed() == {one.me} and one.node.relayed() == {two.me}):
                    await asyncio.sleep(0.1)
            assert relay.node.relayed() == frozenset()
        finally:
            await world.close()

    asyncio.run(main())
