"""The JSON API: everything that the dashboard shows, for scripts, with one read-only endpoint for each block.

Makes a router from a StateSource and an optional invite. Each answer is a struct of dashboard.views; curves
are also available as CSV, the invite as a QR code, the figures as Prometheus metrics. A live dashboard
answers for the present and refuses `at`; a replay answers for the journal time `at`. Unknown parameters are
ignored. Not handled here: the stream and the dashboard (dashboard.serve.app), who may request them
(dashboard.serve.safety).
"""

# Annotations are evaluated at once: FastAPI looks strings up among the module's names, and `at` depends on
# the source.
import csv
import io
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Annotated, Any

import msgspec
from fastapi import APIRouter, Depends, HTTPException, Path, Query, Request
from fastapi.responses import JSONResponse, Response
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from pydantic import Field
from pydantic.json_schema import SkipJsonSchema

from dashboard import views
from dashboard.diagnosis import diagnose
from dashboard.diagnosis.condition import SILENT, condition
from dashboard.fold.parts import pulse
from dashboard.fold.parts.series import Point, Series
from dashboard.fold.state import curve_name
from dashboard.serve import metrics
from dashboard.serve.openapi import Answers, answers, refusals
from dashboard.serve.source import Moment, StateSource
from dashboard.serve.state_view import view_of
from dashboard.text import LARGEST
from swarm.membership import invite as invites
from swarm.types import PeerId

CURVES = 64
"""Most names in one request: more curves than a SwarmState keeps."""

Absent = SkipJsonSchema[None]
"""Type of an optional parameter; a query string has no null."""

Instant = Annotated[float, Field(ge=0, lt=LARGEST, allow_inf_nan=False)]
Duration = Annotated[float, Field(gt=0, lt=LARGEST, allow_inf_nan=False)]
CurveName = Annotated[str, Field(min_length=1, max_length=32)]

After = Annotated[
    int, Query(ge=0, lt=LARGEST, description="A revision that an earlier answer gave; 0 for all.")
]
At = Annotated[
    Instant | Absent, Query(description="Unix seconds of the journal; its end when absent, or when later.")
]
Names = Annotated[
    list[CurveName],
    Query(default_factory=list, max_length=CURVES, description="Again for each; absent: all."),
]
Window = Annotated[
    Duration | Absent, Query(description="Seconds back from the curve's newest point; absent: all of it.")
]


class Csv(Response):
    media_type = "text/csv"


class Svg(Response):
    media_type = "image/svg+xml"


class Exposition(Response):
    media_type = CONTENT_TYPE_LATEST


class Endpoints(APIRouter):
    """Register an endpoint for GET and HEAD; the description shows GET."""

    def endpoint(
        self, path: str, responses: Answers, kind: type[Response] = JSONResponse
    ) -> Callable[[Any], Any]:
        def add(answer: Any) -> Any:
            text = responses[200]["description"]
            self.add_api_route(
                path, answer, methods=["GET"], description=text, responses=responses, response_class=kind
            )
            self.add_api_route(path, answer, methods=["HEAD"], response_class=kind, include_in_schema=False)
            return answer

        return add


def routes(source: StateSource, invite: views.InviteView | None) -> APIRouter:
    """The endpoints of one dashboard: a live one refuses `at`, a replay uses it."""
    router = Endpoints()
    moment = _live(source) if source.live else _replayed(source)
    _swarm(router, moment)
    _curves(router, moment)
    _whole(router, source, moment)
    _joining(router, invite)
    return router


async def timeless(request: Request) -> None:
    """Refuse `at` for a live dashboard, which shows the present only."""
    if "at" in request.query_params:
        raise HTTPException(
            422, "`at`: this window shows a live swarm; `swarm replay JOURNAL` shows what was"
        )


def _live(source: StateSource) -> Callable[..., Any]:
    async def moment(_: Annotated[None, Depends(timeless)]) -> Moment:
        return source.moment()

    return moment


def _replayed(source: StateSource) -> Callable[..., Any]:
    async def moment(at: At = None) -> Moment:
        return source.moment(at)

    return moment


def _swarm(router: Endpoints, moment: Callable[..., Any]) -> None:
    Now = Annotated[Moment, Depends(moment)]

    @router.endpoint("/api/peers", answers(tuple[views.Row, ...], "All peers, by role and name."))
    async def peers(now: Now) -> Response:
        return _json(now.state.rows(now.now))

    @router.endpoint("/api/peers/{id}", answers(views.PeerView, "A peer, and what happened to it.", 404))
    async def peer(now: Now, id: Annotated[str, Path(max_length=64, description="Its peer id.")]) -> Response:
        row = now.state.row(PeerId(id), now.now)
        if row is None:
            raise HTTPException(404, "no peer of this id is known here: /api/peers lists those that are")
        return _json(views.PeerView(peer=row, events=now.state.events(peer=PeerId(id))))

    @router.endpoint(
        "/api/releases", answers(tuple[views.ReleaseView, ...], "Releases and how they spread, newest last.")
    )
    async def releases(now: Now) -> Response:
        return _json(now.state.release_views(now.now))

    @router.endpoint(
        "/api/problems", answers(tuple[views.Problem, ...], "What is wrong now; empty when all is well.")
    )
    async def problems(now: Now) -> Response:
        return _json(diagnose(now.state, now.now))

    @router.endpoint(
        "/api/incidents",
        answers(tuple[views.Incident, ...], "What was wrong in the last day, oldest first."),
    )
    async def incidents(now: Now) -> Response:
        return _json(now.state.incidents.view())

    @router.endpoint("/api/condition", answers(views.Condition, "How it stands, in one line."))
    async def in_a_line(now: Now) -> Response:
        quiet = 0.0 if now.span else now.quiet
        return _json(condition(now.state, now.now, diagnose(now.state, now.now), quiet))

    @router.endpoint(
        "/api/events",
        answers(views.EventsView, "Sentences added or repeated after a revision, oldest first."),
    )
    async def events(now: Now, after: After = 0) -> Response:
        return _json(views.EventsView(revision=now.state.revision, events=now.state.events(after)))


def _curves(router: Endpoints, moment: Callable[..., Any]) -> None:
    Now = Annotated[Moment, Depends(moment)]

    @router.endpoint("/api/series", answers(views.SeriesView, "One curve.", 404))
    async def series(now: Now, name: Annotated[CurveName, Query()], window: Window = None) -> Response:
        points = _points(_curve(now, name), window)
        return _json(
            views.SeriesView(name=name, by="time" if name in pulse.NAMES else "version", points=points)
        )

    @router.endpoint("/api/series.csv", _file("Points of curves, a line each: name, x, at, value.", 404), Csv)
    async def series_csv(now: Now, name: Names, window: Window = None) -> Response:
        curves = {one: _curve(now, one) for one in name or sorted(now.state.series)}
        rows = ((one, *point) for one, curve in curves.items() for point in _points(curve, window))
        file = f"swarm-{name[0]}.csv" if len(name) == 1 and curve_name(name[0]) else "swarm-curves.csv"
        headers = {"Content-Disposition": f'attachment; filename="{file}"'}
        return Csv(_csv(("name", "x", "at", "value"), rows), headers=headers)


def _whole(router: Endpoints, source: StateSource, moment: Callable[..., Any]) -> None:
    Now = Annotated[Moment, Depends(moment)]

    @router.endpoint("/api/state", answers(views.StateView, "Everything that the dashboard shows."))
    async def state(now: Now) -> Response:
        return _json(view_of(now.state, now.now, quiet=now.quiet, replay=now.span))

    @router.endpoint(
        "/api/samples", answers(tuple[views.SampleView, ...], "The newest trained groups that were shown.")
    )
    async def samples(now: Now) -> Response:
        return _json(now.state.samples.view(0))

    @router.endpoint("/api/heat", answers(views.HeatView, "Version lag by peer and time."))
    async def heat(now: Now) -> Response:
        return _json(now.state.heat.view())

    @router.endpoint(
        "/healthz",
        answers(views.HealthView, "The dashboard answers; the status says whether it hears the swarm."),
    )
    async def healthz(now: Now) -> Response:
        ok = now.quiet < SILENT or not source.live
        return _json(views.HealthView(status="ok" if ok else "quiet", quiet=now.quiet))

    @router.endpoint("/metrics", _file("The figures in Prometheus's text format."), Exposition)
    async def prometheus(now: Now) -> Response:
        return Exposition(metrics.exposition(now, source.readers))


def _joining(router: Endpoints, invite: views.InviteView | None) -> None:
    @router.endpoint(
        "/api/invite",
        answers(views.InviteView | None, "How to join the swarm; null when this dashboard does not show it."),
    )
    async def joining() -> Response:
        return _json(invite)

    @router.endpoint("/api/invite.svg", _file("The invite's word as a QR code.", 404), Svg)
    async def qr_code() -> Response:
        if invite is None:
            raise HTTPException(
                404, "this dashboard shows no invite: ask the swarm's host for one (`swarm invite`)"
            )
        drawn = io.BytesIO()
        # Dark on light in a dark theme too, in the quiet zone of four modules that the standard requires:
        # otherwise no phone reads it.
        invites.qr_code(invite.word).save(
            drawn, kind="svg", border=4, dark="#000", light="#fff", xmldecl=False, omitsize=True
        )
        return Svg(drawn.getvalue())


def _curve(now: Moment, name: str) -> Series:
    curve = now.state.series.get(name)
    if curve is None:
        raise HTTPException(404, "no curve of this name: /api/state lists them under `series`")
    return curve


def _points(curve: Series, window: float | None) -> tuple[Point, ...]:
    since = max(curve.times, default=0.0) - window if window is not None else 0.0
    return tuple(point for point in curve.points() if point[1] >= since)


_FORMULA = re.compile(r"^[=+\-@\t\r]")


def _csv(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """CSV by RFC 4180. Text that a spreadsheet would run as a formula is escaped."""
    written = io.StringIO(newline="")
    writer = csv.writer(written)
    writer.writerow(header)
    writer.writerows(
        [_FORMULA.sub(r"'\g<0>", cell) if isinstance(cell, str) else cell for cell in row] for row in rows
    )
    return written.getvalue()


def _file(text: str, *errors: int) -> Answers:
    return {200: {"description": text}} | refusals(*errors)


def _json(value: object) -> Response:
    return Response(msgspec.json.encode(value), media_type="application/json")
