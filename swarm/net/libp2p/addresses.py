"""Addresses to dial.

    text --Address.parse--> Address (host, port, peer) --dial--> bytes for p2pd

Invariant: an Address ends in a peer id and is TCP, direct or over one relay; p2pd can read it, and its host
can be looked up. Not handled: whether a peer answers there (swarm.net.libp2p.p2pd).
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from functools import lru_cache

from hivemind.utils.multiaddr import Multiaddr

from swarm.net.libp2p.listening import Scope, scope_of
from swarm.types import PeerId

_ADDRESS = re.compile(
    r"/(?:ip4|ip6|dns|dns4|dns6)/(?P<host>[^/]+)/tcp/(?P<port>\d{1,5})(?P<relay>/p2p/\w+/p2p-circuit)?/p2p/(?P<peer>\w{40,80})"
)

_PREFIX = {"ip4": 24, "ip6": 64}
"""Bits that machines of a local network usually share."""

KNOWN = 4096
"""Addresses of which it is remembered whether they can be dialled, 2 MB at most: p2pd's form of one takes
50 us."""


@dataclass(frozen=True, slots=True)
class Address:
    """A multiaddr that ends in a peer id; `host` and `port` are those of its first hop."""

    text: str
    host: str
    port: int
    peer: PeerId

    @classmethod
    def parse(cls, text: str) -> Address | None:
        """None when it is not a TCP address (direct or over a relay) with a peer id, or its host or an id is
        none."""
        found = _ADDRESS.fullmatch(text)
        if found is None or not 0 < int(found["port"]) < 65536 or len(text) > 256:
            return None
        if not _can_be_dialled(text, found["host"]):
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


@lru_cache(KNOWN)
def _can_be_dialled(text: str, host: str) -> bool:
    try:
        packed(text)
        host.encode("idna")
    except ValueError:  # those of multiaddr and of the codec are of this kind
        return False
    return True


def packed(address: str) -> bytes:
    """A multiaddress as p2pd reads it: hivemind encodes a relay's id as a CID, p2pd reads a multihash."""
    return bytes(Multiaddr(address).to_bytes()).replace(b"\xa5\x03\x28\x01\x72", b"\xa5\x03\x26")
