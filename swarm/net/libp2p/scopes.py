"""From how far a host can be dialled, by its address alone: without libp2p, for commands that only read.

Not handled: whether anybody can dial it in fact (swarm.net.libp2p.reachability).
"""

from __future__ import annotations

import ipaddress
from enum import IntEnum


class Scope(IntEnum):
    """The widest first."""

    PUBLIC = 0
    PRIVATE = 1
    """A network of a home, a lab or a provider (RFC 1918, 6598, 4193, 3927)."""
    LOOPBACK = 2


def scope_of(host: str) -> Scope:
    """Of an IP address; a name counts as public."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return Scope.PUBLIC
    if address.is_loopback:
        return Scope.LOOPBACK
    return Scope.PUBLIC if address.is_global else Scope.PRIVATE
