"""The page's HTTP server: runs an application inside the caller's event loop and resists slow and hostile
clients.

Serves the application of dashboard.serve.app until the Server is closed. The caller handles signals. uvicorn
has no deadline for a request's head, and none for a client that does not read, so a connection here has both:

    connected --head complete--> answering --answered--> waiting for the next head
    closed after HEAD seconds without a whole head, however its bytes trickle,
           or when it reads less than PORTION in STALL seconds

When there are too many connections, or too many without a request, the oldest ones of the network that has
most of them are closed, so that half-open ones and slow readers block no other client; a network that
connects or asks without a pause is cut off, and sooner while many do (dashboard.serve.doors). What was
answered a moment ago is answered again (dashboard.serve.rendered). Not handled here: what is answered
(dashboard.serve.app), to whom (dashboard.serve.safety), TLS (a proxy).
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import functools
import logging
import socket
import time
from collections.abc import Awaitable, Callable, Generator, Iterator
from typing import Any

import h11
import uvicorn
from fastapi import FastAPI
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from dashboard.serve.doors import HERE, UNIT, Crowd, Door, Fair, Rate, Turns, network
from dashboard.serve.rendered import Rendered

TRIES = 50
"""Ports after the wanted one that are tried: more than the pages of one machine."""

GRACE = 2
"""Seconds for open answers to finish when the server closes; streams end within a quarter of one."""

CONNECTIONS = 256
"""Most open connections, streams included: leaves file descriptors for the swarm."""

WAITING = 64
"""Most connections without a request: a browser keeps six, and a head takes one round trip."""

OPEN = 128
"""Most open connections of other machines: 64 streams (dashboard.serve.feed), and as many that wait. This
machine has as many of its own."""

CONNECT, ALL_CONNECT, FAIR_CONNECT = Rate(20.0, 400.0), Rate(50.0, 400.0), Rate(1.0, 20.0)
"""Connections a second of one network, of all, and of each beyond that: a browser opens six and keeps them; a
proxy on another machine may open one for each request of its readers."""

ASK, ALL_ASK, FAIR_ASK = Rate(20.0, 400.0), Rate(80.0, 400.0), Rate(2.0, 60.0)
"""Requests, likewise: a page makes forty when it is opened, and a few a minute from then on. All of them take
a twentieth of a core; beyond that each network can open a page, and go on."""

HEAD = 5.0
"""Seconds for a request's head, and between an answer and the next head."""

STALL = 30.0
"""Seconds in which a client must read PORTION of a large answer."""

PORTION = 64 << 10
"""Bytes, two a millisecond: a slow phone reads as many, and the connection of a sleeping one is closed."""

NO_ADDRESS = {
    socket.EAI_NONAME,
    socket.EAI_AGAIN,
    socket.EAI_FAIL,
    socket.EAI_NODATA,
    errno.EADDRNOTAVAIL,
}
"""errno of a failed name lookup, and of an address that is another machine's."""

log = logging.getLogger(__name__)
log.setLevel(logging.ERROR)
# uvicorn warns about each malformed request, which would fill a log; our own errors stay.


class PortTaken(OSError):
    """The page's port is in use; the message says which and what to do."""


class NoAddress(OSError):
    """The page's address or port is not to be had here; the message says which and what to do."""


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

    A taken port moves on to the next free one when `free`; else PortTaken. Raises NoAddress for an address
    that this machine does not have, or a port that this user may not have.
    """
    listener, turns = Door(_listen(host, port, free), _arrivals), Turns(asyncio.get_running_loop(), _asked)
    config = uvicorn.Config(
        Metered(Rendered(app)),
        log_config=None,
        access_log=False,
        lifespan="off",
        ws="none",
        server_header=False,
        http=functools.partial(_Connection, turns=turns),  # type: ignore[arg-type]
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
                raise NoAddress(
                    errno.EADDRNOTAVAIL,
                    f"this machine has no address {host}: choose one with `--host` (of `swarm start` and"
                    " `up`: `--set peer.page.host=`)",
                ) from error
            if error.errno in (errno.EACCES, errno.EPERM):
                raise NoAddress(
                    error.errno,
                    f"port {candidate} of {host} is not for this user, as those below 1024: choose another"
                    " with `--port` (of `swarm start` and `up`: `--set peer.page.port=`)",
                ) from error
            if error.errno != errno.EADDRINUSE:
                raise
    tried = (
        f"ports {port} to {min(port + TRIES, 65536) - 1} of {host} are"
        if free
        else f"port {port} of {host} is"
    )
    raise PortTaken(
        errno.EADDRINUSE,
        f"{tried} in use: stop the other program or choose one with `--port 0` (of `swarm start` and `up`:"
        " `--set peer.page.port=0`)",
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


_arrivals = Fair(CONNECT, ALL_CONNECT, FAIR_CONNECT)
"""Of all pages of this process, as the following."""

_asked = Fair(ASK, ALL_ASK, FAIR_ASK)
_waiting, _open = Crowd["_Connection"](WAITING), Crowd["_Connection"](OPEN)


class _Steps:
    """Awaits something and counts the processor's seconds of its own steps: what the loop does while it waits
    is not its."""

    def __init__(self, inner: Awaitable[None]) -> None:
        self._inner = inner
        self._spent = 0.0
        self._began: float | None = None

    @property
    def spent(self) -> float:
        return self._spent + (0.0 if self._began is None else time.thread_time() - self._began)

    def __await__(self) -> Generator[Any, Any, None]:
        inner = self._inner.__await__()
        step: Callable[[], Any] = functools.partial(next, inner)
        while True:
            self._began = time.thread_time()
            try:
                awaited = step()
            except StopIteration:
                return
            finally:
                self._spent, self._began = self.spent, None
            step = functools.partial(next, inner)
            try:
                yield awaited
            except BaseException as error:
                step = functools.partial(inner.throw, error)


class Metered:
    """Around an application: whoever asked is charged for what an answer cost beyond the usual."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        cost: float | None = None

        async def sent(message: Message) -> None:
            nonlocal cost
            if cost is None:
                cost = steps.spent  # a stream goes on, and costs nobody who did not ask for it
            await send(message)

        steps = _Steps(self._app(scope, receive, sent))
        await steps
        if scope["type"] == "http" and scope["client"]:
            spent = steps.spent if cost is None else cost
            _asked.charge(network(scope["client"][0]), spent / UNIT - 1, time.monotonic())


class _Connection(H11Protocol):
    """HTTP/1.1 to one client, with the deadlines in the module's docstring."""

    def __init__(self, *args: Any, turns: Turns, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._turns = turns
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
        if self.network not in HERE:
            _open.add(self.network, self, self.loop.time())
        for gone in (_waiting.too_many(), _open.too_many()):
            if gone is not None:
                gone._leave()  # closed in the loop's next turn: until then it would be chosen again
                gone.transport.abort()

    def data_received(self, data: bytes) -> None:
        if _asked.take(self.network, self.loop.time()):
            self.transport.pause_reading()  # one part of each connection waits, and not all that it sends
            self._turns.wait(self.network, lambda: self._hear(data))
        else:
            self.transport.abort()

    def _hear(self, data: bytes) -> None:
        if not self.transport.is_closing():
            self.transport.resume_reading()
            super().data_received(data)

    def handle_events(self) -> None:
        super().handle_events()
        if self.cycle is not None and not self.cycle.response_complete:
            self._end_wait()

    def send_400_response(self, msg: str) -> None:
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            super().send_400_response(msg)
        else:
            self.transport.abort()  # the answer to a request that turns out to be malformed has begun

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
        self._leave()
        self._stall.stop()
        super().connection_lost(exc)

    def _await_head(self) -> None:
        if not self.transport.is_closing():
            self.head.start(HEAD)
            _waiting.add(self.network, self, self.loop.time())

    def _end_wait(self) -> None:
        self.head.stop()
        _waiting.remove(self.network, self)

    def _leave(self) -> None:
        self._end_wait()
        _open.remove(self.network, self)

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
