"""The dashboard over HTTP: JSON endpoints of one state, curves to take away, an invite to scan, and the
stream."""

from __future__ import annotations

import asyncio
import csv
import io
import json
import re
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from xml.etree import ElementTree

import httpx2
import msgspec
import pytest
from dashboard_story import LEARNERS, SAMPLERS, SEED, heard, still, story, who
from starlette.testclient import TestClient

from dashboard.fold.parts import pulse
from dashboard.fold.state import SwarmState
from dashboard.serve.app import create_app
from dashboard.serve.feed import Feed
from dashboard.serve.replay import JournalReplay
from dashboard.serve.server import serve
from dashboard.views import InviteView
from swarm.events import Bus, Noted
from swarm.membership import invite

INVITE = InviteView(
    role="sampler", word="swarm1" + "abcdefgh" * 12, command="swarm join swarm1...", expires=2e9
)

AGE = "swarm_last_event_age_seconds"


def fed(versions: int = 20) -> Feed:
    feed, bus = still(), Bus()
    bus.add(feed)
    for event in story(versions, start=time.time() - 0.6 * versions):
        bus.emit(event)
    return feed


def web(source: Feed | JournalReplay, invite: InviteView | None = None) -> TestClient:
    return TestClient(create_app(source, invite), base_url="http://localhost")


def test_the_twins_show_one_state() -> None:
    client = web(fed(25))
    state = client.get("/api/state").json()
    assert state["full"] and state["head"]["version"] == 25
    assert state["head"]["roles"] == {
        "learner": [2, 2],
        "sampler": [2, 3],
        "evaluator": [1, 1],
        "seed": [1, 1],
    }
    peers = client.get("/api/peers").json()
    assert [row["id"] for row in peers] == [row["id"] for row in state["peers"]]
    assert client.get("/api/series", params={"name": "reward"}).json()["points"] == state["series"]["reward"]
    assert [release["version"] for release in client.get("/api/releases").json()] == list(range(1, 26))
    assert client.get("/api/samples").json() == state["samples"]
    says = client.get("/api/condition").json(), state["condition"]
    assert len({re.sub(r"for \d+ s", "", str(condition)) for condition in says}) == 1, "a second may pass"
    assert {problem["key"] for problem in client.get("/api/problems").json()} == {
        problem["key"] for problem in state["problems"]
    }
    assert set(client.get("/api/heat").json()["rows"]) <= {row["id"] for row in peers}
    newer = client.get("/api/events", params={"after": state["revision"] - 1}).json()["events"]
    assert [line["text"] for line in newer] == [state["events"][-1]["text"]]


def test_a_peer_is_shown_with_what_happened_to_it_and_a_stranger_is_not_found() -> None:
    client = web(fed(20))
    told = client.get(f"/api/peers/{SAMPLERS[1]}").json()
    assert told["peer"]["id"] == SAMPLERS[1] and told["peer"]["status"] == "lost"
    assert told["events"] and all(SAMPLERS[1] in line["peers"] for line in told["events"])
    answer = client.get(f"/api/peers/{who(99)}")
    assert answer.status_code == 404 and "/api/peers" in answer.json()["detail"]


def test_a_window_of_a_curve_ends_with_its_newest_point() -> None:
    client = web(fed(40))
    whole = client.get("/api/series", params={"name": "reward"}).json()["points"]
    part = client.get("/api/series", params={"name": "reward", "window": 6.1}).json()["points"]
    assert len(whole) == 40 and part == whole[-11:], "a version takes 0.6 s"
    assert client.get("/api/series", params={"name": "nobody"}).status_code == 404


def test_a_curve_says_what_its_x_is() -> None:
    client = web(fed(40))
    assert client.get("/api/series", params={"name": "reward"}).json()["by"] == "version"
    assert client.get("/api/series", params={"name": "peers"}).json()["by"] == "time"


def test_curves_as_csv_are_the_curves_of_the_state() -> None:
    client = web(fed(20))
    series = client.get("/api/state").json()["series"]
    some = client.get("/api/series.csv", params={"name": ["kl", "reward"]})
    assert (
        some.headers["content-type"].startswith("text/csv")
        and "attachment" in some.headers["content-disposition"]
    )
    rows = list(csv.reader(io.StringIO(some.text, newline="")))
    assert rows[0] == ["name", "x", "at", "value"]
    read = [[int(x), float(at), float(value)] for name, x, at, value in rows[1:] if name == "reward"]
    assert read == series["reward"] and {row[0] for row in rows[1:]} == {"kl", "reward"}
    every = list(csv.DictReader(io.StringIO(client.get("/api/series.csv").text, newline="")))
    assert {row["name"] for row in every} == set(series)


@pytest.mark.parametrize("name", ["=1+1", "+x", "-x", "@SUM(A1)", "\tx", "\rx", 'a"b', "a,b\nc"])
def test_a_spreadsheet_runs_nothing_from_a_csv(name: str) -> None:
    feed = fed(2)
    # no event makes such a name: this is the second wall
    feed.state.series[name] = feed.state.series["reward"]
    rows = list(
        csv.reader(io.StringIO(web(feed).get("/api/series.csv", params={"name": name}).text, newline=""))
    )
    assert all(len(row) == 4 and row[0][0] not in "=+-@\t\r" for row in rows)


def test_a_csv_is_named_after_its_curve() -> None:
    named = {
        query: web(fed(2)).get(f"/api/series.csv{query}").headers["content-disposition"]
        for query in ("", "?name=reward")
    }
    assert named == {
        "": 'attachment; filename="swarm-curves.csv"',
        "?name=reward": 'attachment; filename="swarm-reward.csv"',
    }


def test_an_invite_is_a_command_and_a_code_to_scan() -> None:
    client = web(fed(1), INVITE)
    assert msgspec.json.decode(client.get("/api/invite").content, type=InviteView) == INVITE
    answer = client.get("/api/invite.svg")
    assert answer.headers["content-type"] == "image/svg+xml"
    drawn = ElementTree.fromstring(answer.content)
    modules = len(invite.qr_code(INVITE.word).matrix) + 2 * 4
    assert drawn.attrib["viewBox"] == f"0 0 {modules} {modules}", "with the quiet zone"
    assert [path.tag.rpartition("}")[2] for path in drawn] == [
        "path",
        "path",
    ] and b"style" not in answer.content
    assert drawn[0].attrib["fill"] == "#fff" and drawn[1].attrib["stroke"] == "#000"


def test_a_page_without_an_invite_says_whom_to_ask() -> None:
    client = web(fed(1))
    assert client.get("/api/invite").json() is None, "no error: a browser's console stays clean"
    answer = client.get("/api/invite.svg")
    assert answer.status_code == 404 and "swarm invite" in answer.json()["detail"]


def test_health_says_whether_the_window_hears_the_swarm() -> None:
    late, now = 0.0, time.time()
    feed = Feed(SwarmState(), clock=lambda: now + late)
    feed(heard(LEARNERS[0], 3, now))
    client = web(feed)
    assert client.get("/healthz").json()["status"] == "ok"
    late = 15.0
    answer = client.get("/healthz")
    assert answer.status_code == 200 and answer.json()["status"] == "quiet" and answer.json()["quiet"] > 14


def test_a_page_that_hears_itself_alone_hears_nobody() -> None:
    late, now = 0.0, time.time()
    feed = Feed(SwarmState(), clock=lambda: now + late, me=SEED)
    feed(heard(LEARNERS[0], 3, now))
    client = web(feed)

    def age() -> float:
        (line,) = (one for one in client.get("/metrics").text.splitlines() if one.startswith(AGE))
        return float(line.split()[1])

    for late in (30.0, 60.0, 90.0):
        feed(heard(SEED, 3, now + late))
        feed(Noted(at=now + late, peer=SEED, level="info", text="nobody is here"))
        answer = client.get("/healthz")
        assert answer.status_code == 200 and answer.json() == {"status": "quiet", "quiet": late}
    assert age() == 90.0, "the alert SwarmUnheard asks for more than 60"
    feed(Noted(at=now + late, peer=LEARNERS[0], level="info", text="another one's event"))
    assert client.get("/healthz").json()["status"] == "ok" and age() == 0.0


def test_a_replay_shows_any_moment() -> None:
    client = web(JournalReplay(list(story(40, start=1e9))))
    for at, version in ((1e9 + 6.1, 10), (1e9 + 12.1, 20), (None, 40), (2e9, 40)):
        asked = {} if at is None else {"at": at}
        assert client.get("/api/state", params=asked).json()["head"]["version"] == version
        assert len(client.get("/api/releases", params=asked).json()) == version
        assert f"swarm_policy_version {version}.0" in client.get("/metrics", params=asked).text
        assert client.get("/healthz", params=asked).json()["status"] == "ok"


@pytest.mark.parametrize("path", ["/api/peers", "/stream"])
def test_a_live_window_has_no_other_time_than_now(path: str) -> None:
    answer = web(fed(1)).get(path, params={"at": 1e9})
    assert answer.status_code == 422 and "swarm replay" in answer.json()["detail"]


def test_a_head_is_a_get_without_its_body() -> None:
    client = web(fed(3), INVITE)
    paths = (
        "/",
        "/static/app.js",
        "/api/series?name=reward",
        "/api/peers/nobody",
        "/api/invite.svg",
        "/openapi.json",
    )
    for path in paths:
        asked, got = client.head(path), client.get(path)
        assert (
            asked.status_code == got.status_code
            and asked.headers["content-type"] == got.headers["content-type"]
        )
    assert client.head("/stream").headers["content-type"].startswith("text/event-stream")


@pytest.mark.parametrize("encoding", ["identity", "gzip"])
def test_a_stream_begins_with_everything_and_goes_on_with_differences(encoding: str) -> None:
    async def scene() -> None:
        feed = fed(20)
        server = await serve(create_app(feed), "127.0.0.1", 0, free=False)
        accept = {"Accept-Encoding": encoding}
        try:
            async with (
                httpx2.AsyncClient(headers=accept) as client,
                client.stream("GET", server.url + "stream") as answer,
            ):
                assert answer.headers.get("content-encoding", "identity") == encoding
                views = _views(answer)
                first = await anext(views)
                assert first["full"] and len(first["peers"]) == 7 and len(first["series"]["reward"]) == 20
                feed(heard(SAMPLERS[0], 20, time.time(), seq=10**6))
                second = await anext(views)
                assert not second["full"] and second["series"].keys() <= set(pulse.NAMES)
                assert [row["id"] for row in second["peers"]] == [SAMPLERS[0]]
                assert feed.readers == 1
            async with asyncio.timeout(3):
                while feed.readers:
                    await asyncio.sleep(0.05)
        finally:
            await server.close()

    asyncio.run(scene())


def test_streams_are_limited_and_a_seat_that_was_left_is_free_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("dashboard.serve.feed.READERS", 3)

    async def scene() -> None:
        feed = fed(1)
        server = await serve(create_app(feed), "127.0.0.1", 0, free=False)
        async with httpx2.AsyncClient() as client:
            for _ in range(2):
                async with AsyncExitStack() as open_pages:
                    for _ in range(3):
                        await open_pages.enter_async_context(client.stream("GET", server.url + "stream"))
                    refused = await client.get(server.url + "stream")
                    assert refused.status_code == 503 and "close one" in refused.json()["detail"]
                    elsewhere = await client.get(server.url + "healthz")
                    assert elsewhere.status_code == 200 and feed.readers == 3
                async with asyncio.timeout(3):
                    while feed.readers:
                        await asyncio.sleep(0.05)
        await server.close()

    asyncio.run(scene())


async def _views(answer: httpx2.Response) -> AsyncIterator[dict]:  # type: ignore[type-arg]
    async for line in answer.aiter_lines():
        if line.startswith("data: "):
            yield json.loads(line[6:])
