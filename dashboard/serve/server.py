"""The dashboard's HTTP server: runs an application inside the caller's event loop.

Serves the application of dashboard.serve.app until the Server is closed. The caller handles signals. uvicorn
limits connections and the size of a request's head, and closes idle ones. Not handled here: the answers
(dashboard.serve.app), their safety (dashboard.serve.safety), TLS, passwords and rates (a proxy,
docs/dashboard.md).
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import socket
from collections.abc import Iterator

import uvicorn
from fastapi import FastAPI

TRIES = 50
"""Ports after the wanted one that are tried: more than the dashboards of one machine."""

GRACE = 2
"""Seconds for open answers to finish when the server closes; streams end within a quarter of one."""

CONNECTIONS = 256
"""Most open connections, streams included: leaves file descriptors for the swarm. Others get code 503."""

NO_ADDRESS = {
    socket.EAI_NONAME,
    socket.EAI_AGAIN,
    socket.EAI_FAIL,
    socket.EAI_NODATA,
    errno.EADDRNOTAVAIL,
}
"""errno of a failed name lookup, and of an address that is another machine's."""

logging.getLogger("uvicorn.error").setLevel(logging.ERROR)
# uvicorn warns about each malformed request, which would fill a log; our own errors stay.


class DashboardPortTaken(OSError):
    """The dashboard's port is in use; the message says which and what to do."""


class NoAddress(OSError):
    """The dashboard's address or port is unavailable here; the message says which and what to do."""


class Server:
    """A dashboard that is being served."""

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

    A taken port moves on to the next free one when `free`; else DashboardPortTaken. Raises NoAddress for an
    address that this machine does not have, or a port that this user may not have.
    """
    listener = _listen(host, port, free)
    config = uvicorn.Config(
        app,
        log_config=None,
        access_log=False,
        lifespan="off",
        ws="none",
        server_header=False,
        http="h11",  # limits a request's head, as httptools does not
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
            listener = socket.create_server((host, candidate), family=family)
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
        else:
            # Connections inherit it; asyncio sets it only for listeners of its own. Else a body waits 40 ms
            # until its head is acknowledged.
            listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return listener
    tried = (
        f"ports {port} to {min(port + TRIES, 65536) - 1} of {host} are"
        if free
        else f"port {port} of {host} is"
    )
    raise DashboardPortTaken(
        errno.EADDRINUSE,
        f"{tried} in use: stop the other program or choose one with `--port 0` (of `swarm start` and `up`:"
        " `--set peer.page.port=0`)",
    )


class _Quiet(uvicorn.Server):
    """uvicorn without signal handlers: the host handles signals, since it shuts down more than a
    dashboard."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield
