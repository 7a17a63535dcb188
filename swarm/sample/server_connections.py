"""A server's address, and the connections of a call, which another thread may close while they wait for
answers."""

from __future__ import annotations

import contextlib
import ipaddress
import socket
import threading
from collections.abc import Iterator
from urllib.parse import urlsplit

from swarm.sample.base import Stopped


class Connections:
    """Whose `close` is called from any thread."""

    def __init__(self) -> None:
        self.closed = False
        self._open = set[socket.socket]()
        self._lock = threading.Lock()

    @contextlib.contextmanager
    def holding(self, one: socket.socket) -> Iterator[None]:
        """`one` is among them in the body. Raises Stopped where they are closed already."""
        with self._lock:
            if self.closed:
                raise Stopped
            self._open.add(one)
        try:
            yield
        finally:
            with self._lock:
                self._open.discard(one)

    def close(self) -> None:
        """Who waits for an answer on one of them reads its end instead, and the server does so, too."""
        with self._lock:
            self.closed = True
            for one in self._open:
                # One whose answer has come may be closed already.
                with contextlib.suppress(OSError):
                    one.shutdown(socket.SHUT_RDWR)


def address(url: str) -> tuple[str, int, str]:
    """Host, port and path of `peer.engine.url`. Raises ValueError."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port or 80
    except ValueError as error:
        raise ValueError(
            f"peer.engine.url = {url!r} is no URL ({error}): write http://127.0.0.1:8000"
        ) from error
    if parts.scheme != "http" or not host:
        raise ValueError(
            f"peer.engine.url = {url!r} is not the URL of a vLLM server: write http://127.0.0.1:8000"
        )
    if not _loopback(host):
        raise ValueError(
            f"peer.engine.url names another machine ({host}): releases reach the server through files, so run"
            " this peer there"
        )
    return host, port, parts.path.rstrip("/").removesuffix("/v1")


def _loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
