"""The page's HTTP server: runs an application inside the caller's event loop and resists slow and hostile
clients.

Serves the application of dashboard.app until the Server is closed. The caller handles signals. uvicorn has no
deadline for a request's head, and none for a client that does not read, so a connection here has both:

    connected --head complete--> answering --answered--> waiting for the next head
    closed after HEAD seconds without a whole head, however its bytes trickle,
           or when it reads less than PORTION in STALL seconds

When there are too many connections without a request, the oldest ones of the network that has most of them
are closed, so that half-open ones block no other client; a network that asks without a pause is cut off, and
sooner while many do. Not handled here: what is answered (dashboard.app), to whom (dashboard.safety), TLS (a
proxy).
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import ipaddress
import logging
import socket
from collections.abc import Callable, Iterator
from typing import Any

import uvicorn
from fastapi import FastAPI
from uvicorn.protocols.http.h11_impl import H11Protocol

from swarm.core.budget import UNBOUNDED, Budget

TRIES = 50
"""Ports after the wanted one that are tried: more than the pages of one machine."""

GRACE = 2
"""Seconds for open answers to finish when the server closes; streams end within a quarter of one."""

CONNECTIONS = 256
"""Most open connections, streams included: leaves file descriptors for the swarm."""

WAITING = 64
"""Most connections without a request: a browser keeps six, and a head takes one round trip."""

RATE, BURST = 20.0, 400.0
"""Requests a second of one network: a page makes forty when it is opened, and a few a minute from then on.
This machine itself has no limit, since a proxy on it asks for everybody."""

ALL_RATE, ALL_BURST = 160.0, 800.0
"""The same of all networks together, a tenth of a core. Where they ask for more, each has FAIR_RATE."""

FAIR_RATE, FAIR_BURST = 2.0, 80.0
"""Requests a second of one network while there is a crowd: a page that is opened then, twice, and goes on."""

NETWORKS = 4096
"""Networks whose rate is remembered."""

HERE = ("127.0.0.1", "0000:0000:0000:0000", "")
"""Networks of this machine itself: a proxy on it asks for everybody."""

HEAD = 5.0
"""Seconds for a request's head, and between an answer and the next head."""

STALL = 30.0
"""Seconds in which a client must read PORTION of a large answer."""

PORTION = 64 << 10
"""Bytes, two a millisecond: a slow phone reads as many, and the connection of a sleeping one is closed."""

NO_ADDRESS = {socket.EAI_NONAME, socket.EAI_AGAIN, socket.EAI_FAIL, socket.EAI_NODATA}
"""errno of a failed name lookup."""

log = logging.getLogger(__name__)
log.setLevel(logging.ERROR)
# uvicorn warns about each malformed request, which would fill a log; our own errors stay.


class PortTaken(OSError):
    """The page's port is in use; the message says which and what to do."""


class Server:
    """A page that is being served."""

    def __init__(self, server: uvicorn.Server, app: FastAPI, listener: socket.socket) -> None:
        self._server, self._source = server, app.state.source
        host, self.port = listener.getsockname()[:2]
        shown = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, f"[{host}]" if ":" in host else host)
        self.url = f"http://{shown}:{self.port}/"
        self._task = asyncio.create_task(server.serve(sockets=[listener]), name="page")

    async def wait_started(self) -> None:
        while not self._server.started and not self._task.done():
            await asyncio.sleep(0.01)
        if self._task.done():
            await self._task

    async def close(self) -> None:
        """Stop listening and end the streams; returns when the port is free, in at most about GRACE
        seconds."""
        self._source.close()
        self._server.should_exit = True
        await self._task


async def serve(app: FastAPI, host: str, port: int, free: bool) -> Server:
    """Listen on `host`:`port` (0: any) and answer until `close`.

    A taken port moves on to the next free one when `free`; else PortTaken. Any other OSError (no such
    address, port below 1024) is raised as it is.
    """
    listener = _listen(host, port, free)
    config = uvicorn.Config(
        app,
        log_config=None,
        access_log=False,
        lifespan="off",
        ws="none",
        server_header=False,
        http=_Connection,
        timeout_keep_alive=int(HEAD),
        timeout_graceful_shutdown=GRACE,
        limit_concurrency=CONNECTIONS,
    )
    app.state.hosts.bind(host)
    app.state.source.open()
    server = Server(_Quiet(config), app, listener)
    await server.wait_started()
    return server


def _listen(host: str, port: int, free: bool) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    for candidate in range(port, min(port + TRIES, 65536)) if free and port else (port,):
        try:
            return socket.create_server((host, candidate), family=family, backlog=64)
        except OSError as error:
            if error.errno in NO_ADDRESS:
                raise OSError(errno.EADDRNOTAVAIL, f"{host} is no address of this machine") from error
            if error.errno != errno.EADDRINUSE:
                raise
    tried = (
        f"ports {port} to {min(port + TRIES, 65536) - 1} of {host} are"
        if free
        else f"port {port} of {host} is"
    )
    raise PortTaken(
        errno.EADDRINUSE,
        f"{tried} in use: stop the other program or choose one with `--set peer.page.port=0`",
    )


class _Quiet(uvicorn.Server):
    """uvicorn without signal handlers: the host handles signals, since it shuts down more than a page."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class _Alarm:
    """A timer that calls `ring` unless it is stopped in time."""

    def __init__(self, loop: asyncio.AbstractEventLoop, ring: Callable[[], object]) -> None:
        self._loop, self._ring = loop, ring
        self._timer: asyncio.TimerHandle | None = None

    @property
    def ends(self) -> float | None:
        """Deadline in loop seconds; None while it is stopped."""
        return self._timer.when() if self._timer else None

    def start(self, seconds: float) -> None:
        self.stop()
        self._timer = self._loop.call_later(seconds, self._ring)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def network(address: str) -> str:
    """What one client has at least: an IPv4 address, or the first half of an IPv6 one."""
    if ":" not in address:
        return address
    return ipaddress.IPv6Address(address.partition("%")[0]).exploded[:19]


class Waiting:
    """Connections without a request, by network. One more costs no look at those that are there."""

    def __init__(self) -> None:
        self._of: dict[str, dict[_Connection, None]] = {}
        """Of each network the oldest first."""
        self._count = 0

    def add(self, one: _Connection) -> None:
        """Its wait begins, or begins anew."""
        self.remove(one)
        self._of.setdefault(one.network, {})[one] = None
        self._count += 1

    def remove(self, one: _Connection) -> None:
        """It waits no more, if it did."""
        mine = self._of.get(one.network, {})
        if one in mine:
            del mine[one]
            self._count -= 1
            if not mine:
                del self._of[one.network]

    def too_many(self) -> _Connection | None:
        """Of more than WAITING connections the oldest one of the network that has most of them."""
        if self._count <= WAITING:
            return None
        most = max(map(len, self._of.values()))
        oldest = (next(iter(mine)) for mine in self._of.values() if len(mine) == most)
        return min(oldest, key=lambda one: one.head.ends or 0.0)


_budget = Budget((RATE, BURST), UNBOUNDED, NETWORKS)
"""Of all pages of this process, as the following."""

_all = Budget(UNBOUNDED, (ALL_RATE, ALL_BURST), 1)
_fair = Budget((FAIR_RATE, FAIR_BURST), UNBOUNDED, NETWORKS)

_waiting = Waiting()


def _is_heard(network: str, now: float) -> bool:
    """Whether a network may ask once more, now."""
    if network in HERE:
        return True
    return _budget.take(network, 1.0, now) and (_all.take("", 1.0, now) or _fair.take(network, 1.0, now))


class _Connection(H11Protocol):
    """HTTP/1.1 to one client, with the deadlines in the module's docstring."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.logger = log
        self.head = _Alarm(self.loop, self._close)
        """Runs while no request is being answered."""
        self._stall = _Alarm(self.loop, self._hurry)
        """Runs while the client has much to read."""
        self._unread = 0
        """Unread bytes when the alarm was started."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.network = network(self.client[0]) if self.client else ""
        # asyncio leaves it out for a listener of ours: a head and its body would wait 40 ms for each other.
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._await_head()
        if (gone := _waiting.too_many()) is not None:
            gone._end_wait()  # closed in the loop's next turn: until then it would be chosen again
            gone.transport.abort()

    def data_received(self, data: bytes) -> None:
        if _is_heard(self.network, self.loop.time()):
            super().data_received(data)
        else:
            self.transport.abort()

    def handle_events(self) -> None:
        super().handle_events()
        if self.cycle is not None and not self.cycle.response_complete:
            self._end_wait()

    def on_response_complete(self) -> None:
        self._await_head()
        super().on_response_complete()  # stops it again when the client has sent its next request already

    def pause_writing(self) -> None:
        super().pause_writing()
        self._expect()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._stall.stop()

    def connection_lost(self, exc: Exception | None) -> None:
        self._end_wait()
        self._stall.stop()
        super().connection_lost(exc)

    def _await_head(self) -> None:
        if not self.transport.is_closing():
            self.head.start(HEAD)
            _waiting.add(self)

    def _end_wait(self) -> None:
        self.head.stop()
        _waiting.remove(self)

    def _close(self) -> None:
        if self.transport.get_write_buffer_size():
            # A slow client may still be reading the last answer.
            self._expect()
        self.transport.close()

    def _expect(self) -> None:
        self._unread = self.transport.get_write_buffer_size()
        self._stall.start(STALL)

    def _hurry(self) -> None:
        if self.transport.get_write_buffer_size() > self._unread - PORTION:
            self.transport.abort()
        else:
            self._expect()
