"""Where a peer listens, and the addresses to announce, without libp2p.

settings --announced--> where others reach it
host --free_port--> an unused port
host, port --check_port--> PortTaken where another program has it
settings --check_named--> the same for the ports that they name
"""

from __future__ import annotations

import errno
import ipaddress
import socket
from enum import IntEnum

from swarm.net.ports import NetError
from swarm.settings.config import Listen

EVERYWHERE = ("0.0.0.0", "::")
"""Hosts that stand for all interfaces."""

ELSEWHERE = "192.0.2.1"
"""An unused address (RFC 5737): the route to it is the route to all others."""


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


class PortTaken(NetError):
    """A port of the settings is another program's, or is not to be had here."""


def announced(listen: Listen, port: int) -> list[str]:
    """Where others reach this peer by the settings, without its id, and then this machine's address in a
    private network: not every router leads its own machines to a port that it forwards."""
    said = [address.split("/p2p/")[0] for address in listen.announce]
    host = way_out() if listen.host in EVERYWHERE else listen.host
    if not said or listen.dial_only or host is None or scope_of(host) is not Scope.PRIVATE:
        return said
    beside = f"/ip{6 if ':' in host else 4}/{host}/tcp/{port}"
    return list(dict.fromkeys([*said, beside]))


def way_out() -> str | None:
    """This machine's address on the way to others; None where there is no way. Nothing is sent."""
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((ELSEWHERE, 9))
            return str(probe.getsockname()[0])
    except OSError:
        return None


def is_here(host: str) -> bool:
    """Whether this machine has an IP address, or may have it where that is unknown."""
    try:
        with socket.socket(_family(host), socket.SOCK_DGRAM) as probe:
            probe.bind((host, 0))
    except OSError as error:
        return error.errno != errno.EADDRNOTAVAIL
    return True


def free_port(host: str) -> int:
    """A TCP port that nothing listens on now."""
    with socket.socket(_family(host), socket.SOCK_STREAM) as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])


def check_port(host: str, port: int, setting: str = "peer.listen.port") -> None:
    """Raises PortTaken when another program listens there. p2pd itself would share the port and lose half of
    its callers."""
    with socket.socket(_family(host), socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            what = (
                "already in use by another program"
                if error.errno == errno.EADDRINUSE
                else f"not to be had ({error.strerror})"
            )
            todo = f"choose another one with `--set {setting}=<port>`, or 0 for a free one"
            raise PortTaken(f"TCP port {port} on {host} is {what}: {todo}") from error


def check_named(listen: Listen, parts: bool = False) -> None:
    """Raises PortTaken when another program has the port that the settings name, or with `parts` the one for
    parts of gradients."""
    port, setting = (listen.parts, "peer.listen.parts") if parts else (listen.port, "peer.listen.port")
    if port and not listen.dial_only:
        check_port(listen.host, port, setting)


def _family(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET
