"""The page and its JSON twins over HTTP, read-only.

In comes a Feed, out goes a FastAPI application: `/` (the page), `/static`, `/stream` (server-sent events), `/api/state`,
`/api/peers`, `/api/series`, `/api/events`, `/healthz`, `/openapi.json`. `serve` runs it inside the caller's event loop and leaves
the process's signal handling alone. Every answer carries a Content-Security-Policy without inline script or style, and no answer
carries the text of an exception. Not handled here: who may look (bind to loopback, or put a proxy in front).
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Annotated

import msgspec
import uvicorn
from fastapi import Depends, FastAPI, HTTPException, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import FileResponse, JSONResponse, Response
from fastapi.sse import EventSourceResponse, ServerSentEvent
from fastapi.staticfiles import StaticFiles
from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from dashboard.feed import Feed

STATIC = Path(__file__).parent / "static"
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
TRIES = 50
# Ports after the wanted one that are tried: more pages than anybody runs on one machine.
GRACE = 2
# Seconds that open answers get when the server closes; streams end by themselves in a quarter of one.
CONNECTIONS = 256
# Open connections in all, streams included: keeps file descriptors for the swarm.


class PortTaken(OSError):
    """The page's port is in use; the message says which and what to do."""


def create_app(source: Feed) -> FastAPI:
    app = FastAPI(title="swarm", docs_url=None, redoc_url=None)  # their pages load scripts from elsewhere
    app.state.feed = source
    app.add_middleware(_Headers)
    app.add_exception_handler(RequestValidationError, _bad_query)
    app.add_exception_handler(Exception, _our_bug)
    app.mount("/static", StaticFiles(directory=STATIC), name="static")
    _add_twins(app, source)

    @app.get("/", include_in_schema=False)
    async def page() -> FileResponse:
        return FileResponse(STATIC / "index.html")

    async def seat() -> AsyncIterator[None]:
        if source.full:
            raise HTTPException(503, "too many pages are open here: close one and reload")
        source.readers += 1
        try:
            yield
        finally:
            source.readers -= 1

    @app.get("/stream", response_class=EventSourceResponse, dependencies=[Depends(seat)])
    async def stream() -> AsyncIterator[ServerSentEvent]:
        """Views as in `/api/state`, each with what changed since the one before; `full` ones replace everything."""
        async for view in source.updates():
            yield ServerSentEvent(raw_data=view, event="view", retry=1000)

    return app


def _add_twins(app: FastAPI, source: Feed) -> None:
    @app.get("/healthz")
    async def healthz() -> dict[str, str]:
        return {"status": "ok"}

    @app.get("/api/state")
    async def state() -> Response:
        """Everything the page shows."""
        return _json(source.view())

    @app.get("/api/peers")
    async def peers() -> Response:
        return _json(source.state.rows(source.clock()))

    @app.get("/api/series")
    async def series(name: Annotated[str, Query(max_length=32)]) -> Response:
        """(version, value) pairs of one curve."""
        curve = source.state.series.get(name)
        if curve is None:
            raise HTTPException(404, "no curve of this name; /api/state lists them under series")
        return _json({"name": name, "points": curve.points()})

    @app.get("/api/events")
    async def events(after: Annotated[int, Query(ge=0, lt=2**53)] = 0) -> Response:
        """Sentences after revision `after`, oldest first; ask next with the answer's `revision`."""
        return _json({"revision": source.state.revision, "events": source.state.events(after)})


def _json(value: object) -> Response:
    return Response(msgspec.json.encode(value), media_type="application/json")


def _bad_query(request: Request, error: Exception) -> JSONResponse:
    return JSONResponse({"detail": "a parameter of the query is missing or not allowed; /openapi.json lists them"}, 422)


def _our_bug(request: Request, error: Exception) -> JSONResponse:
    return JSONResponse({"detail": "the page has a bug; the terminal of the peer that serves it shows where"}, 500)


class _Headers:
    """Adds the security headers to every answer."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers["Content-Security-Policy"] = POLICY
                headers["X-Content-Type-Options"] = "nosniff"
                headers["Referrer-Policy"] = "no-referrer"
                headers["Cache-Control"] = "no-cache" if scope["path"].startswith("/static") else "no-store"
            await send(message)

        await self._app(scope, receive, with_headers if scope["type"] == "http" else send)


class Server:
    """A page that is being served."""

    def __init__(self, server: uvicorn.Server, feed: Feed, listener: socket.socket) -> None:
        self._server, self._feed = server, feed
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
        """Stop listening and end the streams; returns when the port is free, in at most about GRACE seconds."""
        self._feed.close()
        self._server.should_exit = True
        await self._task


class _Quiet(uvicorn.Server):
    """uvicorn that leaves the signals to the host, which has more to shut down than a page."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


async def serve(app: FastAPI, host: str, port: int, free: bool) -> Server:
    """Listen on `host`:`port` (0: any) and answer until `close`.

    A taken port moves on to the next free one when `free`; else PortTaken. Any other OSError (no such address, port below
    1024) is raised as it is.
    """
    listener = _listen(host, port, free)
    config = uvicorn.Config(
        app, log_config=None, access_log=False, lifespan="off", ws="none", server_header=False, http="h11",
        timeout_keep_alive=5, timeout_graceful_shutdown=GRACE, limit_concurrency=CONNECTIONS,
    )  # fmt: skip
    app.state.feed.open()
    server = Server(_Quiet(config), app.state.feed, listener)
    await server.wait_started()
    return server


def _listen(host: str, port: int, free: bool) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    for candidate in range(port, min(port + TRIES, 65536)) if free and port else (port,):
        try:
            return socket.create_server((host, candidate), family=family, backlog=64)
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
    tried = f"ports {port} to {min(port + TRIES, 65536) - 1} of {host} are" if free else f"port {port} of {host} is"
    raise PortTaken(errno.EADDRINUSE, f"{tried} in use: stop the other program or choose one with `--set peer.page.port=0`")
