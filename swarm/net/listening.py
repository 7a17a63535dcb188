"""TCP ports to listen on, without libp2p.

host --free_port--> a port that nobody has
host, port --check_port--> NetError where another program has it
"""

from __future__ import annotations

import errno
import socket

from swarm.net.ports import NetError


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
                if error.errno == errno.EADDRINUSE
                else f"not to be had ({error.strerror})"
            )
            todo = "choose another one with `--set listen.port=<port>`, or 0 for a free one"
            raise NetError(f"TCP port {port} on {host} is {what}: {todo}") from error


def _family(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET
