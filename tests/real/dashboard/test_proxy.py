"""The dashboard behind a proxy that asks for a password and serves it under a path, as in docs/dashboard.md:
one that takes the path off, and one that does not."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing, suppress
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import pytest
from dashboards import Play
from playwright.async_api import Browser
from proxies import PASSWORD, USER, served, works_in_whole
from starlette.testclient import TestClient

from dashboard.fold.state import SwarmState
from dashboard.serve.app import create_app
from dashboard.serve.feed import Feed

PREFIX = "/lab/run"
GRANTED = "Basic " + base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()
OWN = ("connection", "transfer-encoding", "content-length")
"""Headers that belong to one connection."""


class Proxy(BaseHTTPRequestHandler):
    """Asks for a password, passes what is under PREFIX on, and streams the answers."""

    page = ""
    """Host and port that it passes requests on to."""
    strips = True

    def do_GET(self) -> None:
        if self.headers.get("authorization") != GRANTED:
            self._answer(401, [("WWW-Authenticate", 'Basic realm="page"')])
        elif not self.path.startswith(f"{PREFIX}/"):
            self._answer(404, [])
        else:
            self._pass(self.path.removeprefix(PREFIX) if self.strips else self.path)

    def _pass(self, path: str) -> None:
        connection = HTTPConnection(self.page)
        with closing(connection):
            connection.request("GET", path)
            answer = connection.getresponse()
            self._answer(answer.status, [pair for pair in answer.getheaders() if pair[0].lower() not in OWN])
            with suppress(ConnectionError):  # the browser left a stream
                while part := answer.read1():
                    self.wfile.write(part)

    def _answer(self, status: int, headers: list[tuple[str, str]]) -> None:
        self.send_response(status)
        for name, value in headers:
            self.send_header(name, value)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Nothing is written for each request."""


@asynccontextmanager
async def proxied(strips: bool) -> AsyncIterator[tuple[str, Feed]]:
    """The address of a dashboard under PREFIX of a proxy."""
    async with served("" if strips else PREFIX) as (port, feed):
        handler = type("Handler", (Proxy,), {"page": f"127.0.0.1:{port}", "strips": strips})
        proxy = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        serving = Thread(target=proxy.serve_forever, daemon=True)
        serving.start()
        try:
            yield f"http://127.0.0.1:{proxy.server_address[1]}{PREFIX}/", feed
        finally:
            await asyncio.to_thread(proxy.shutdown)
            proxy.server_close()


@pytest.mark.parametrize(
    "strips",
    [
        pytest.param(True, id="takes the path off"),
        pytest.param(False, id="keeps the path", marks=pytest.mark.nightly),
    ],
)
def test_a_page_under_a_path_works_in_whole(play: Play, strips: bool) -> None:
    async def scene(chromium: Browser) -> None:
        async with proxied(strips) as (url, feed):
            context = await chromium.new_context(http_credentials={"username": USER, "password": PASSWORD})
            await works_in_whole(context, url, feed)

    play(scene)


def test_a_page_of_a_path_answers_there_and_at_its_own_root() -> None:
    client = TestClient(create_app(Feed(SwarmState()), path=PREFIX), base_url="http://localhost")
    for path in ("/", "/api/state", "/static/app.js", "/metrics", "/openapi.json"):
        assert client.get(PREFIX + path).status_code == client.get(path).status_code == 200
    assert client.get(f"{PREFIX}s/api/state").status_code == 404
    assert client.get("/openapi.json").json()["servers"] == [{"url": PREFIX}]
