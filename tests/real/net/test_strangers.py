"""Every handler of a node of a private run, as the code has them: what a stranger asks is refused before its
body is read, or the handler stands here with the reason why it is open. A handler that is new is found."""

from __future__ import annotations

import ast
import asyncio

import pytest
from places import ROOT

from swarm.core.membership import UNSHOWN, Trust
from swarm.membership.identity import Keyring, verify
from swarm.protocol import SERVICES, Service
from swarm.types import PeerId

NOW = 1_750_000_000.0
STRANGER = Keyring.new().me

REGISTERED = {
    "swarm/net/messaging/mail.py": "services of mail, behind StreamMail.guard",
    "swarm/net/libp2p/circuits.py": "carries for who reserved it by mail, and decodes nothing",
    "swarm/net/averaging/hivemind_averager.py": "serves whom this round invited: members that it hears",
    "swarm/net/messaging/guard.py": "hivemind's own, with limits",
    "swarm/net/averaging/paced.py": "the averager's: streams of whom no round invited are closed unread, and"
    " no ticket goes to them (swarm.net.averaging.bypass lets in who shows one)",
    "swarm/net/libp2p/p2pd.py": "the one way to p2pd that mail and circuits take",
}
"""Where handlers are registered at p2pd, and who is answered there."""

REGISTERS = {
    "on_stream",
    "add_binary_stream_handler",
    "add_p2p_handlers",
    "add_protobuf_handler",
    "add_unary_handler",
    "stream_handler",
}

CALLS = {
    "DHTProtocol.rpc_ping": "open: a newcomer compares clocks before it is a member; it is no neighbour",
    "DHTProtocol.rpc_find": "strangers find nothing, and no neighbours: swarm.net.messaging.guard",
    "DHTProtocol.rpc_store": "strangers store nothing: swarm.net.messaging.guard",
    "Rounds.rpc_join_group": "a stream: PacedP2P closes it (tests/real/net/test_averager.py knocks)",
    "Rounds.rpc_aggregate_part": "a stream, as well",
}
"""Calls of hivemind, and what a stranger has of each. p2pd and hivemind have read the message of those that
are no streams, of a few MiB at most, before our code is asked."""


def test_handlers_are_registered_where_it_is_said_who_is_answered() -> None:
    found = set()
    for path in sorted(ROOT.glob("swarm/**/*.py")) + sorted(ROOT.glob("peers/**/*.py")):
        text = path.read_text()
        for node in ast.walk(ast.parse(text)) if any(name in text for name in REGISTERS) else ():
            if isinstance(node, ast.Attribute) and node.attr in REGISTERS:
                found.add(str(path.relative_to(ROOT)))
    assert found == set(REGISTERED)


def test_calls_of_hivemind_are_those_of_which_it_is_said_who_is_answered() -> None:
    pytest.importorskip("hivemind", exc_type=ImportError)
    from hivemind.p2p import ServicerBase

    import swarm.net.averaging.hivemind_averager
    import swarm.net.libp2p.dht  # noqa: F401 (both for their handlers)

    found = {
        f"{kind.__name__}.{name}"
        for kind in ServicerBase.__subclasses__()
        for name in dir(kind)
        if name.startswith("rpc_") and kind.__module__.startswith(("swarm.", "hivemind.dht."))
    }
    assert found == set(CALLS)


def test_a_private_run_lets_a_stranger_show_its_membership_and_do_nothing_else() -> None:
    trust = Trust("lab", Keyring.new().public, True, verify)
    asked = [*Service, "a service that is in no table yet"]
    answered = {service for service in asked if trust.refusal(STRANGER, service, NOW) is None}
    assert answered == {Service.ENTER, Service.RENEW}
    assert all(SERVICES[service].largest <= 8 << 10 for service in answered)
    assert trust.refusal(STRANGER, Service.SPEC, NOW) == UNSHOWN
    public = Trust("lab", Keyring.new().public, False, verify)
    assert not any(public.refusal(STRANGER, service, NOW) for service in asked)


def test_at_a_real_node_no_service_of_mail_reads_what_a_stranger_sends() -> None:
    hive_world = pytest.importorskip("hive_world", exc_type=ImportError)
    from swarm.net.messaging.mail import _REPLY, _SIZE, REFUSED

    async def refusal(node: object, to: PeerId, name: str) -> tuple[int, str]:
        """What comes back after a header alone."""
        line = await node.line()  # type: ignore[attr-defined]
        reader, writer = await line.open_stream(to, name, 5.0)
        writer.write(_SIZE.pack(100))
        await writer.drain()
        async with asyncio.timeout(20.0):
            status, size = _REPLY.unpack(await reader.readexactly(_REPLY.size))
            return status, (await reader.readexactly(size)).decode()

    async def handle(sender: PeerId, message: bytes) -> bytes:
        raise AssertionError("a stranger's message was read")

    async def body(world: object) -> None:
        member, stranger = await world.ports(2)  # type: ignore[attr-defined]
        trust = Trust("lab", Keyring.new().public, True, verify)
        member.mail.guard(lambda peer, service: trust.refusal(peer, service, NOW))
        for service in Service:
            await member.mail.serve(service, handle)
        served = {
            name for name in (await member.node.line())._client.control.handlers if "/libp2p/" not in name
        }
        assert len(served) == len(Service)
        closed = [name for name in served if name.rpartition("/")[2] not in (Service.ENTER, Service.RENEW)]
        for name in sorted(closed):
            assert await refusal(stranger.node, member.me, name) == (REFUSED, UNSHOWN), name

    hive_world.in_world(body)
