"""The connections of a call, which another thread may close while they wait for answers."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator

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
