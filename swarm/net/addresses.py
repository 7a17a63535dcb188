"""Addresses to dial and ports to listen on.

    text --Address.parse--> Address (host, port, peer) --dial--> bytes for p2pd
    host --free_port--> a port that nobody has
    host, port --check_port--> NetError where another program has it

Invariant: an Address ends in a peer id and is TCP, direct or over one relay. Not handled: whether anybody
answers there (swarm.net.p2pd).
"""

from __future__ import annotations

import ipaddress
import re
import socket
from dataclasses import dataclass

from swarm.net.ports import NetError
from swarm.net.scopes import Scope, scope_of

# isort: split
from hivemind.utils.multiaddr import Multiaddr

from swarm.types import PeerId

_ADDRESS = re.compile(
    r"/(?:ip4|ip6|dns|dns4|dns6)/(?P<host>[^/]+)/tcp/(?P<port>\d{1,5})(?P<relay>/p2p/\w+/p2p-circuit)?/p2p/(?P<peer>\w{40,80})"
)

_PREFIX = {"ip4": 24, "ip6": 64}
"""Bits that machines of a local network usually share."""


@dataclass(frozen=True, slots=True)
class Address:
    """A multiaddr that ends in a peer id; `host` and `port` are those of its first hop."""

    text: str
    host: str
    port: int
    peer: PeerId

    @classmethod
    def parse(cls, text: str) -> Address | None:
        """None when it is not a TCP address (direct or over a relay) with a peer id."""
        found = _ADDRESS.fullmatch(text)
        if found is None or not 0 < int(found["port"]) < 65536 or len(text) > 256:
            return None
        return cls(text, found["host"], int(found["port"]), PeerId(found["peer"]))

    @property
    def relayed(self) -> bool:
        """Whether it is another peer's, which carries the connection."""
        return "/p2p-circuit/" in self.text

    @property
    def scope(self) -> Scope:
        """Of its first hop."""
        return scope_of(self.host)

    def beside(self, other: Address) -> bool:
        """Whether both are probably in one local network: the first 24 bits of IPv4, 64 of IPv6."""
        mine, its = (one.text.split("/")[1:2] for one in (self, other))
        if mine != its or mine[0] not in _PREFIX:
            return False
        network = ipaddress.ip_network(f"{self.host}/{_PREFIX[mine[0]]}", strict=False)
        return ipaddress.ip_address(other.host) in network

    @property
    def dial(self) -> bytes:
        """The address without the peer id, in binary form."""
        return packed(self.text.removesuffix(f"/p2p/{self.peer}"))


def packed(address: str) -> bytes:
    """A multiaddress as p2pd reads it: hivemind encodes a relay's id as a CID, p2pd reads a multihash."""
    return bytes(Multiaddr(address).to_bytes()).replace(b"\xa5\x03\x28\x01\x72", b"\xa5\x03\x26")


def free_port(host: str) -> int:
    """A TCP port that nothing listens on now."""
    with socket.socket(_family(host), socket.SOCK_STREAM) as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])


def check_port(host: str, port: int) -> None:
    """Raises NetError when somebody listens there. p2pd itself would share the port and lose half of its
    callers."""
    with socket.socket(_family(host), socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            what = (
                "already in use by another program"
                if error.errno == 98
                else f"not to be had ({error.strerror})"
            )
            todo = "choose another one with `--set listen.port=<port>`, or 0 for a free one"
            raise NetError(f"TCP port {port} on {host} is {what}: {todo}") from error


def _family(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET
