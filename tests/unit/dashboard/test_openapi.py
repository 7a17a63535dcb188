"""The description of the endpoints is true: schemathesis asks for what it allows and forbids, of a live
window and of a replay."""

from __future__ import annotations

import time

import msgspec
import pytest
import schemathesis
from dashboard_story import story
from fastapi import FastAPI
from hypothesis import HealthCheck, Phase, settings
from schemathesis.python.asgi import HOST
from starlette.testclient import TestClient

from dashboard import views
from dashboard.fold.state import SwarmState
from dashboard.serve.app import create_app
from dashboard.serve.feed import Feed
from dashboard.serve.replay import JournalReplay

INVITE = views.InviteView(
    role="sampler", word="swarm1abcdefgh", command="swarm join swarm1abcdefgh", expires=2e9
)
FEW = settings(
    max_examples=8, phases=[Phase.explicit, Phase.generate], suppress_health_check=list(HealthCheck)
)
"""Examples of each operation: both windows together take some seconds."""


def live() -> FastAPI:
    feed = Feed(SwarmState())
    for event in story(10, start=time.time() - 6):
        feed(event)
    feed.close()  # so that a stream ends
    return create_app(feed, INVITE, hosts=[HOST])


def replayed() -> FastAPI:
    replay = JournalReplay(list(story(10, start=1e9)))
    replay.close()
    return create_app(replay, hosts=[HOST])


LIVE, REPLAYED = live(), replayed()


@schemathesis.openapi.from_asgi("/openapi.json", LIVE).parametrize()
@FEW
def test_a_live_window_does_what_its_description_says(case: schemathesis.Case) -> None:
    case.call_and_validate()


@schemathesis.openapi.from_asgi("/openapi.json", REPLAYED).parametrize()
@FEW
def test_a_replay_does_what_its_description_says(case: schemathesis.Case) -> None:
    case.call_and_validate()


def test_every_view_and_every_field_with_a_text_is_described() -> None:
    schemas = LIVE.openapi()["components"]["schemas"]
    kinds = {kind for kind in vars(views).values() if isinstance(kind, type) and issubclass(kind, views.View)}
    assert {kind.__name__ for kind in kinds - {views.View}} == set(schemas)
    low = schemas["EvaluationView"]["properties"]["low"]["description"]
    assert low == schemas["JudgedView"]["properties"]["low"]["description"] != ""
    assert schemas["Row"]["properties"]["lag"]["description"] == "Versions behind the newest release."
    assert schemas["Claims"]["description"] == "A peer's reports about itself, unverified."


@pytest.mark.parametrize("app", [LIVE, REPLAYED], ids=["live", "replay"])
def test_only_a_replay_has_a_time(app: FastAPI) -> None:
    about = {"/api/invite", "/api/invite.svg"}
    for path, operations in app.openapi()["paths"].items():
        assert set(operations) == {"get"}
        names = {parameter["name"] for parameter in operations["get"].get("parameters", ())}
        assert ("at" in names) == (app is REPLAYED and path not in about), path
        assert ("speed" in names) == (app is REPLAYED and path == "/stream")


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("state", views.StateView),
        ("peers", tuple[views.Row, ...]),
        ("releases", tuple[views.ReleaseView, ...]),
        ("heat", views.HeatView),
        ("problems", tuple[views.Problem, ...]),
        ("samples", tuple[views.SampleView, ...]),
        ("events", views.EventsView),
        ("series?name=reward", views.SeriesView),
        ("invite", views.InviteView),
    ],
)
def test_a_twin_answers_with_the_view_that_it_names(path: str, kind: type) -> None:
    answer = TestClient(LIVE, base_url="http://localhost").get(f"/api/{path}")
    view = msgspec.json.decode(answer.content, type=kind)
    assert msgspec.json.decode(msgspec.json.encode(view)) == answer.json(), (
        "every field of the view, and no other"
    )
