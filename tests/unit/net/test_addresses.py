"""Addresses: what can be dialled and how p2pd is told, ports that are free and ports that are not."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager

import base58
import pytest

from swarm.net.libp2p.addresses import Address, packed
from swarm.net.libp2p.listening import check_port, free_port, is_here, way_out
from swarm.net.ports import NetError
from swarm.types import PeerId

PEER, RELAY = (
    PeerId(base58.b58encode(b"\x00\x24\x08\x01\x12\x20" + bytes([k]) * 32).decode()) for k in range(2)
)


@pytest.mark.parametrize(
    ("first", "host", "port"),
    [
        ("/ip4/10.0.0.1/tcp/4001", "10.0.0.1", 4001),
        ("/ip6/::1/tcp/1", "::1", 1),
        ("/dns/a.example/tcp/65535", "a.example", 65535),
        ("/dns4/a.example/tcp/443", "a.example", 443),
        ("/dns6/a.example/tcp/443", "a.example", 443),
    ],
)
@pytest.mark.parametrize("relay", ["", f"/p2p/{RELAY}/p2p-circuit"])
def test_an_address_has_the_host_and_the_port_of_its_first_hop_and_the_peer_at_its_end(
    first: str, host: str, port: int, relay: str
) -> None:
    text = f"{first}{relay}/p2p/{PEER}"
    assert Address.parse(text) == Address(text, host, port, PEER)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "/ip4/10.0.0.1/tcp/4001",
        f"/ip4/10.0.0.1/udp/4001/p2p/{PEER}",
        f"/ip4/10.0.0.1/tcp/0/p2p/{PEER}",
        f"/ip4/10.0.0.1/tcp/65536/p2p/{PEER}",
        f"/unix/10.0.0.1/tcp/4001/p2p/{PEER}",
        f"/ip4/10.0.0.1/tcp/4001/p2p/{PEER}/p2p-circuit",
        f"/ip4/10.0.0.1/tcp/4001/p2p/{PEER}\n",
        f" /ip4/10.0.0.1/tcp/4001/p2p/{PEER}",
        f"/ip4/localhost/tcp/4001/p2p/{PEER}",
        f"/ip6/10.0.0.1/tcp/4001/p2p/{PEER}",
        f"/ip6/fe80::1%eth0/tcp/4001/p2p/{PEER}",
        f"/dns4/a..b/tcp/4001/p2p/{PEER}",
        f"/dns4/./tcp/4001/p2p/{PEER}",
        f"/dns4/a\0b/tcp/4001/p2p/{PEER}",
        f"/dns4/{'a' * 64}.example/tcp/4001/p2p/{PEER}",
        f"/ip4/10.0.0.1/tcp/4001/p2p/zzz/p2p-circuit/p2p/{PEER}",
        f"/ip4/10.0.0.1/tcp/4001/p2p/{'_' * 52}",
        f"/ip4/10.0.0.1/tcp/4001/p2p/{'z' * 52}",
    ],
)
def test_what_cannot_be_dialled_is_no_address(text: str) -> None:
    assert Address.parse(text) is None


def test_an_address_has_at_most_256_letters() -> None:
    tail = f"/tcp/4001/p2p/{PEER}"
    longest = f"/dns/{('a' * 60 + '.') * 3}{'a' * (256 - len('/dns/' + tail) - 183)}{tail}"
    assert len(longest) == 256 and Address.parse(longest) is not None
    assert Address.parse(longest.replace("/dns/", "/dns/a")) is None


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("/ip4/192.168.7.1", "/ip4/192.168.7.200", True),
        ("/ip4/192.168.7.1", "/ip4/192.168.6.1", False),
        ("/ip6/fd00:0:0:1::1", "/ip6/fd00:0:0:1:ffff::2", True),
        ("/ip6/fd00:0:0:1::1", "/ip6/fd00:0:0:2::1", False),
        ("/ip4/192.168.7.1", "/ip6/fd00:0:0:1::1", False),
        ("/dns/a.example", "/dns/a.example", False),
    ],
)
def test_two_addresses_are_of_one_local_network_or_not(one: str, other: str, same: bool) -> None:
    mine, its = (Address.parse(f"{first}/tcp/4001/p2p/{PEER}") for first in (one, other))
    assert mine is not None and its is not None
    assert mine.beside(its) is its.beside(mine) is same


def test_an_address_over_a_relay_is_told_from_a_direct_one() -> None:
    direct, over = (
        Address.parse(f"/ip4/10.0.0.1/tcp/4001{relay}/p2p/{PEER}")
        for relay in ("", f"/p2p/{RELAY}/p2p-circuit")
    )
    assert direct is not None and over is not None
    assert over.relayed and not direct.relayed


def test_p2pd_dials_the_way_to_a_peer_without_the_peer_itself() -> None:
    """github.com/multiformats/multicodec: ip4 0x04, tcp 0x06, p2p 0x01a5, p2p-circuit 0x0122, as varints; an
    id is the length and the bytes of its multihash."""
    direct = bytes.fromhex("040a000001" + "060fa1")
    relay = base58.b58decode(RELAY)
    circuit = direct + bytes.fromhex("a503") + bytes([len(relay)]) + relay + bytes.fromhex("a202")
    for way, dialled in (("", direct), (f"/p2p/{RELAY}/p2p-circuit", circuit)):
        address = Address.parse(f"/ip4/10.0.0.1/tcp/4001{way}/p2p/{PEER}")
        assert address is not None and address.dial == dialled == packed("/ip4/10.0.0.1/tcp/4001" + way)


@contextmanager
def listening(host: str) -> Iterator[socket.socket]:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.create_server((host, 0), family=family) as server:
        yield server


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_a_port_at_which_somebody_listens_is_refused_and_one_that_was_found_free_is_not(host: str) -> None:
    with listening(host) as server:
        port = server.getsockname()[1]
        with pytest.raises(NetError, match=f"TCP port {port} on {host} is already in use by another program"):
            check_port(host, port)
        other = free_port(host)
        assert other != port
        check_port(host, other)


def test_a_host_that_is_not_this_machine_is_told_as_such() -> None:
    with pytest.raises(NetError, match=r"not to be had \(.*assign"):
        check_port("192.0.2.1", 0)


def test_a_port_whose_last_connection_has_just_ended_can_be_had() -> None:
    with listening("127.0.0.1") as server:
        port = server.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)) as caller:
            server.accept()[0].close()  # who closes first keeps the connection's end for a minute
            assert caller.recv(1) == b""
    check_port("127.0.0.1", port)


def test_where_no_more_files_can_be_opened_no_address_counts_as_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> socket.socket:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    assert is_here("127.0.0.1") and not is_here("192.0.2.1")
    with monkeypatch.context() as patch:
        patch.setattr(socket, "socket", full)
        assert is_here("192.0.2.1") and way_out() is None
