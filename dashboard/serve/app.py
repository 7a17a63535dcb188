"""The dashboard, its stream and its JSON API as one read-only application.

Makes a FastAPI application from a StateSource (a live swarm or a replay): `/` (the dashboard), `/static`,
`/stream` (server-sent events), the endpoints of dashboard.serve.json_api and their description in
`/openapi.json`; behind a proxy all of it under a path too, since the dashboard's own addresses are relative.
Every request passes dashboard.serve.safety first. The number of streams is limited. Not handled here: ports
and connections (dashboard.serve.server), who may read the dashboard (bind to loopback, or put a proxy in
front).
"""

# Annotations are evaluated at once: FastAPI looks strings up among the module's names, and a replay's stream
# has parameters.
import os
from collections.abc import AsyncIterator, Collection
from pathlib import Path
from typing import Annotated

from fastapi import Depends, FastAPI, HTTPException, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import FileResponse, JSONResponse, Response, StreamingResponse
from fastapi.sse import format_sse_event
from fastapi.staticfiles import StaticFiles
from starlette.exceptions import HTTPException as HTTPError
from starlette.middleware.gzip import GZipMiddleware
from starlette.types import Scope

from dashboard.serve.json_api import Absent, Instant, routes, timeless
from dashboard.serve.openapi import describe, frames, refusals
from dashboard.serve.replay import FASTEST
from dashboard.serve.safety import Hosts, Safety
from dashboard.serve.source import StateSource
from dashboard.views import InviteView
from swarm import __version__

ABOUT = (
    "A window on a swarm that trains a language model: who is alive, how stale everything is, and what is"
    " wrong. Read-only."
)
STATIC = Path(__file__).parents[1] / "static"
KINDS = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
    ".txt": "text/plain; charset=utf-8",
}
"""Media types of static files; the machine's own list may give a script a type that browsers refuse to
run."""

SMALLEST = 1000
"""Least bytes of an answer that is compressed: fewer fit one packet anyway."""

EFFORT = 3
"""zlib's compression level: 5 ms for the half megabyte of 500 peers; level 5 takes 1.5 times as long for 6 %
fewer bytes."""

RETRY = 1000
"""Milliseconds until a browser reconnects to a stream that broke."""

UNBUFFERED = {"X-Accel-Buffering": "no"}
"""Header that makes a buffering proxy pass a stream on at once."""

Start = Annotated[Instant | Absent, Query(description="Unix seconds of the journal; its end when absent.")]
Pace = Annotated[
    float,
    Query(ge=0, le=FASTEST, allow_inf_nan=False, description="Journal seconds a second; 0 stands still."),
]


def create_app(
    source: StateSource, invite: InviteView | None = None, hosts: Collection[str] = (), path: str = ""
) -> FastAPI:
    """`hosts`: host names under which the dashboard is served, besides those that the server adds; `path`:
    prefix of a proxy which does not strip it, for example `/swarm`."""
    app = FastAPI(
        title="swarm",
        version=__version__,
        description=ABOUT,
        redirect_slashes=False,
        docs_url=None,
        redoc_url=None,  # FastAPI's pages load scripts from elsewhere
        servers=[{"url": path}] if path else None,
        generate_unique_id_function=lambda route: route.name,
    )
    app.state.source, app.state.hosts = source, Hosts(hosts)
    app.add_middleware(GZipMiddleware, minimum_size=SMALLEST, compresslevel=EFFORT, exclude_content_types=())
    app.add_middleware(Safety, hosts=app.state.hosts)
    app.add_exception_handler(RequestValidationError, _bad_query)
    app.add_exception_handler(HTTPError, _refused)
    app.mount("/static", Static(directory=STATIC), name="static")
    if path:
        app.mount(path, app.router)  # the same at both: at the root for whoever asks the dashboard itself
    app.include_router(routes(source, invite))
    _add_stream(app, source)

    @app.api_route("/", methods=["GET", "HEAD"], include_in_schema=False)
    async def page() -> FileResponse:
        return FileResponse(STATIC / "index.html", media_type=KINDS[".html"])

    app.openapi = describe(app)  # type: ignore[method-assign]
    return app


def _add_stream(app: FastAPI, source: StateSource) -> None:
    async def seat() -> AsyncIterator[None]:
        if not source.room:
            raise HTTPException(503, "too many dashboards are open here: close one and reload")
        source.readers += 1
        try:
            yield
        finally:
            source.readers -= 1

    async def live(_: Annotated[None, Depends(timeless)]) -> AsyncIterator[str]:
        return source.updates()

    async def replayed(at: Start = None, speed: Pace = 1.0) -> AsyncIterator[str]:
        return source.updates(at, speed)

    Updates = Annotated[AsyncIterator[str], Depends(live if source.live else replayed)]

    @app.get(
        "/stream",
        response_class=Response,
        dependencies=[Depends(seat)],
        responses=frames() | refusals(503),
    )
    async def stream(updates: Updates) -> EventStream:
        """Views as in `/api/state`, each with what changed since the one before; `full` ones replace
        everything."""
        return EventStream(_frames(updates), headers=UNBUFFERED)

    @app.head("/stream", include_in_schema=False)
    async def stream_head() -> EventStream:
        return EventStream((), headers=UNBUFFERED)


class EventStream(StreamingResponse):
    """Server-sent events, each made after the one before is sent. (FastAPI's own response holds two back in
    queues, and reports a client that disconnects meanwhile as an exception.)"""

    media_type = "text/event-stream"


async def _frames(updates: AsyncIterator[str]) -> AsyncIterator[bytes]:
    async for view in updates:
        yield format_sse_event(data_str=view, event="view", retry=RETRY)


class Static(StaticFiles):
    def file_response(
        self,
        full_path: os.PathLike[str] | str,
        stat_result: os.stat_result,
        scope: Scope,
        status_code: int = 200,
    ) -> Response:
        answer = super().file_response(full_path, stat_result, scope, status_code)
        if "content-type" in answer.headers:  # of an unchanged file there is none
            answer.headers["content-type"] = KINDS.get(Path(full_path).suffix, "application/octet-stream")
        return answer


async def _bad_query(request: Request, error: Exception) -> JSONResponse:
    """An error that names the parameter and what it must be, and never repeats its value."""
    assert isinstance(error, RequestValidationError)
    wrong = "; ".join(f"`{'.'.join(map(str, one['loc'][1:]))}`: {one['msg']}" for one in error.errors())
    return JSONResponse({"detail": f"{wrong}. /openapi.json lists the parameters"}, 422)


async def _refused(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPError)
    unknown = error.detail == "Not Found"
    detail = (
        "there is nothing at this address: /openapi.json lists what there is" if unknown else error.detail
    )
    return JSONResponse({"detail": detail}, error.status_code, error.headers)
