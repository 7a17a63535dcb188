"""The page over HTTP: twins, stream, ports, headers."""

from __future__ import annotations

import asyncio
import errno
import json
import signal
import socket
import time

import httpx2
import pytest
from dashboard_story import SAMPLERS, heard, story
from starlette.testclient import TestClient

from dashboard.app import POLICY, PortTaken, create_app, serve
from dashboard.feed import READERS, Feed
from dashboard.state import State
from swarm.events import Bus


def fed(versions: int = 20) -> Feed:
    feed, bus = Feed(State()), Bus()
    bus.add(feed)
    for event in story(versions, start=time.time() - 0.6 * versions):
        bus.emit(event)
    return feed


def test_every_twin_answers_with_the_security_headers() -> None:
    client = TestClient(create_app(fed()))
    twins = ("/api/state", "/api/peers", "/api/series?name=reward", "/api/events", "/healthz")
    for path in ("/", "/static/app.js", *twins, "/nothing"):
        answer = client.get(path)
        assert answer.status_code == (404 if path == "/nothing" else 200), path
        assert answer.headers["content-security-policy"] == POLICY
        assert answer.headers["x-content-type-options"] == "nosniff"
    assert "inline" not in POLICY and "style=" not in client.get("/").text


def test_the_twins_show_one_state() -> None:
    feed = fed(20)
    client = TestClient(create_app(feed))
    state = client.get("/api/state").json()
    assert state["head"]["version"] == 20
    assert state["head"]["roles"] == {"learner": [2, 2], "sampler": [2, 3], "evaluator": [1, 1], "seed": [1, 1]}
    assert [row["id"] for row in client.get("/api/peers").json()] == [row["id"] for row in state["peers"]]
    assert client.get("/api/series", params={"name": "reward"}).json()["points"] == state["series"]["reward"]
    newer = client.get("/api/events", params={"after": state["revision"] - 1}).json()["events"]
    assert [line["text"] for line in newer] == [state["events"][-1]["text"]]


@pytest.mark.parametrize("path", ["series", "series?name=" + "x" * 99, "events?after=-1", "events?after=zzyzx"])
def test_a_bad_query_is_refused_without_echoing_it(path: str) -> None:
    answer = TestClient(create_app(fed(1))).get(f"/api/{path}")
    assert answer.status_code == 422
    assert "zzyzx" not in answer.text and "xxx" not in answer.text


def test_an_error_of_ours_does_not_show_its_text() -> None:
    feed = fed(1)
    feed.view = lambda since=0: 1 / 0  # type: ignore[method-assign, assignment, return-value]
    answer = TestClient(create_app(feed), raise_server_exceptions=False).get("/api/state")
    assert answer.status_code == 500
    assert "division" not in answer.text and "Zero" not in answer.text


def test_a_stream_begins_with_everything_and_goes_on_with_differences() -> None:
    async def scene() -> None:
        feed = fed(20)
        server = await serve(create_app(feed), "127.0.0.1", 0, free=False)
        try:
            async with httpx2.AsyncClient() as client, client.stream("GET", server.url + "stream") as answer:
                views = _views(answer)
                first = await anext(views)
                assert first["full"] and len(first["peers"]) == 7 and len(first["series"]["reward"]) == 20
                feed(heard(SAMPLERS[0], 20, time.time(), seq=10**6))
                second = await anext(views)
                assert not second["full"] and second["series"] == {}
                assert [row["id"] for row in second["peers"]] == [SAMPLERS[0]]
                assert feed.readers == 1
            async with asyncio.timeout(3):
                while feed.readers:
                    await asyncio.sleep(0.05)
        finally:
            await server.close()

    asyncio.run(scene())


def test_a_fast_swarm_sends_a_reader_at_most_four_updates_a_second() -> None:
    async def scene() -> int:
        feed, got = fed(1), 0

        async def read() -> None:
            nonlocal got
            async for _ in feed.updates():
                got += 1

        async with asyncio.TaskGroup() as group:
            group.create_task(read())
            end = time.monotonic() + 1.0
            while time.monotonic() < end:
                feed(heard(SAMPLERS[0], 1, time.time(), seq=feed.state.revision))
                await asyncio.sleep(0.002)
            feed.close()
        return got

    assert 2 <= asyncio.run(scene()) <= 5


def test_a_reader_that_never_reads_costs_no_memory_and_does_not_stop_the_close() -> None:
    async def scene() -> None:
        feed = fed(50)
        server = await serve(create_app(feed), "127.0.0.1", 0, free=False)
        slow = socket.create_connection(("127.0.0.1", server.port))
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        slow.sendall(b"GET /stream HTTP/1.1\r\nHost: x\r\n\r\n")
        for number in range(20):
            feed(heard(SAMPLERS[0], 50, time.time(), seq=10**6 + number))
            await asyncio.sleep(0.05)
        assert feed.statistics()["readers"] == 1
        before = time.monotonic()
        await server.close()
        assert time.monotonic() - before < 6
        slow.close()

    asyncio.run(scene())


def test_closing_ends_the_streams_and_the_same_feed_can_be_served_again() -> None:
    async def scene() -> None:
        feed = fed(3)
        for _ in range(2):
            server = await serve(create_app(feed), "127.0.0.1", 0, free=False)
            async with httpx2.AsyncClient() as client, client.stream("GET", server.url + "stream") as answer:
                views = _views(answer)
                assert (await anext(views))["full"]
                before = time.monotonic()
                async with asyncio.TaskGroup() as group:
                    group.create_task(server.close())
                    assert [view async for view in views] == []
                assert time.monotonic() - before < 1.5, "streams end by themselves, not by the server's patience"

    asyncio.run(scene())


def test_beyond_the_limit_a_reader_is_told_so() -> None:
    feed = fed(1)
    feed.readers = READERS
    answer = TestClient(create_app(feed)).get("/stream")
    assert answer.status_code == 503 and "close one" in answer.json()["detail"]


def test_a_taken_port_moves_on_only_when_asked() -> None:
    async def scene() -> None:
        app = create_app(fed(1))
        first = await serve(app, "127.0.0.1", 0, free=False)
        with pytest.raises(PortTaken, match=f"port {first.port} of 127.0.0.1 is in use: .*peer.page.port=0") as refused:
            await serve(create_app(fed(1)), "127.0.0.1", first.port, free=False)
        assert refused.value.errno == errno.EADDRINUSE
        second = await serve(create_app(fed(1)), "127.0.0.1", first.port, free=True)
        assert first.port < second.port < first.port + 50
        async with httpx2.AsyncClient() as client:
            assert (await client.get(second.url + "healthz")).json() == {"status": "ok"}
        await first.close()
        await second.close()
        again = await serve(create_app(fed(1)), "127.0.0.1", first.port, free=False)
        await again.close()

    asyncio.run(scene())


def test_serving_leaves_signals_to_the_host() -> None:
    async def scene() -> None:
        before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
        server = await serve(create_app(fed(1)), "127.0.0.1", 0, free=False)
        assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before
        await server.close()

    asyncio.run(scene())


async def _views(answer: httpx2.Response):  # type: ignore[no-untyped-def]
    async for line in answer.aiter_lines():
        if line.startswith("data: "):
            yield json.loads(line[6:])
