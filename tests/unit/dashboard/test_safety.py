"""Whom the dashboard answers, with which headers, and what it keeps to itself."""

from __future__ import annotations

import hashlib
import re
import socket
import time
from functools import cache
from pathlib import Path

import pytest
from dashboard_story import story
from hypothesis import given
from hypothesis import strategies as st
from starlette.testclient import TestClient

from dashboard.fold.state import SwarmState
from dashboard.serve.app import STATIC, create_app
from dashboard.serve.feed import READERS, Feed
from dashboard.serve.safety import HEADERS, Hosts

VENDORED = {
    "htm-3.1.1.js": "ab33dd3f38059b9be4d5f5350128eefb2356639c4e0bbe9d9e8b3ba75847e9e4",
    "htm-preact-3.1.1.js": "72284e8e9079c87817145df1110f74e8a2aa040b2fc384922e18dfcb46fc1fd7",
    "uplot-1.6.32.css": "df630c6a8d6f8eeaff264b50f73ce5b114f646ffd9a0bb74f049b0a00135fa04",
    "uplot-1.6.32.js": "5dd9b3281aa64b461b42d9945f6adb2649d346502b12281a9ae0d46599a80eba",
}
LICENCES = ("htm-LICENSE.txt", "preact-LICENSE.txt", "uplot-LICENSE.txt")


def fed() -> Feed:
    feed = Feed(SwarmState())
    for event in story(20, start=time.time() - 12):
        feed(event)
    return feed


@cache
def client(*hosts: str) -> TestClient:
    return serving(fed(), *hosts)


def serving(feed: Feed, *hosts: str) -> TestClient:
    return TestClient(
        create_app(feed, hosts=hosts), base_url="http://localhost", raise_server_exceptions=False
    )


@cache
def broken() -> TestClient:
    feed = fed()
    del feed.state.rounds
    return serving(feed)


PATHS = (
    "/",
    "/static/app.js",
    "/api/state",
    "/api/peers",
    "/openapi.json",
    "/metrics",
    "/healthz",
    "/nothing",
    "/api/series",
)


@pytest.mark.parametrize("path", PATHS)
def test_every_answer_carries_the_security_headers_and_none_for_other_origins(path: str) -> None:
    answer = client().get(path, headers={"Origin": "http://evil.example"})
    assert {name: answer.headers.get(name) for name in HEADERS} == HEADERS
    assert not [name for name in answer.headers if name.lower().startswith("access-control")]
    assert answer.headers["cache-control"] == ("no-cache" if path in ("/", "/static/app.js") else "no-store")


def test_our_own_errors_and_refusals_carry_them_too() -> None:
    for answer in (
        broken().get("/api/state"),
        client().get("/", headers={"Host": "evil.example"}),
        client().post("/"),
    ):
        assert answer.status_code in (500, 421, 405)
        assert {name: answer.headers.get(name) for name in HEADERS} == HEADERS


def test_the_policy_allows_no_inline_code_and_the_page_has_none() -> None:
    assert "unsafe" not in str(HEADERS) and "default-src 'none'" in HEADERS["Content-Security-Policy"]
    page = client().get("/").text
    assert not re.search(
        r"<style|\sstyle=|\son\w+=|javascript:|<script(?![^>]*\ssrc=)|(src|href)=\"(https?:)?//", page
    )


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "BREW"])
@pytest.mark.parametrize("path", ["/", "/api/state", "/static/app.js", "/nothing"])
def test_the_page_can_only_be_read(method: str, path: str) -> None:
    answer = client().request(method, path)
    assert answer.status_code == 405 and answer.headers["allow"] == "GET, HEAD"


@pytest.mark.parametrize(
    "host", ["localhost", "127.0.0.1:9999", "[::1]:8080", "LocalHost.", "window.example:443"]
)
def test_the_page_answers_to_its_names_at_any_port(host: str) -> None:
    assert client("Window.Example").get("/healthz", headers={"Host": host}).status_code == 200


STRANGE = [
    "[127.0.0.1]x.evil.example",
    "[localhost]",
    "localhost:evil.example",
    "127.0.0.1:80@evil.example",
    "localhost/x",
]


@pytest.mark.parametrize(
    "host", ["evil.example", "localhost.evil.example", "10.0.0.1", "", "127.0.0.1.evil.example", *STRANGE]
)
def test_a_foreign_name_is_refused_and_told_what_to_do(host: str) -> None:
    answer = client().get("/api/state", headers={"Host": host})
    assert answer.status_code == 421 and "peer.page.hosts" in answer.json()["detail"]


def test_a_page_that_others_can_reach_answers_to_the_machines_own_name() -> None:
    hosts = Hosts()
    own = socket.gethostname()
    assert not hosts.allow(f"{own}:8080") or own == "localhost"
    hosts.bind("192.168.1.5")
    assert hosts.allow("192.168.1.5:8080") and hosts.allow(f"{own}:8080") and not hosts.allow("192.168.1.6")
    hosts.bind("::")
    assert hosts.allow("192.168.1.6") and hosts.allow("[fe80::1]:8080") and not hosts.allow("evil.example")


@given(st.text(max_size=40))
def test_no_foreign_host_header_is_answered_or_crashes(header: str) -> None:
    bare = header.strip().lower()
    own = any(bare.startswith(name) for name in ("localhost", "127.0.0.1", "::1", "[::1]"))
    assert own or not Hosts().allow(header)


def test_an_error_of_ours_does_not_show_its_text() -> None:
    answer = broken().get("/api/state")
    assert answer.status_code == 500
    assert "rounds" not in answer.text and "Attribute" not in answer.text and "log" in answer.json()["detail"]


@pytest.mark.parametrize(
    "path", ["series", "series?name=" + "x" * 99, "events?after=-1", "events?after=zzyzx", "state?at=zzyzx"]
)
def test_a_bad_query_is_refused_without_echoing_it(path: str) -> None:
    answer = client().get(f"/api/{path}")
    assert answer.status_code == 422
    assert "zzyzx" not in answer.text and "xxx" not in answer.text
    name = path.partition("?")[2].partition("=")[0] or "name"
    assert f"`{name}`" in answer.json()["detail"], "the sentence names the parameter"


@pytest.mark.parametrize(
    "path", ["../app.py", "..%2fapp.py", "%2e%2e/app.py", "vendor/../../app.py", "/etc/passwd", "vendor"]
)
def test_static_serves_its_folder_and_nothing_else(path: str) -> None:
    assert client().get(f"/static/{path}").status_code == 404


def test_scripts_and_styles_have_the_types_that_browsers_insist_on_and_are_asked_for_again_cheaply() -> None:
    web = client()
    for path in sorted(STATIC.rglob("*.*")):
        answer = web.get(f"/static/{path.relative_to(STATIC)}")
        kind = {
            ".js": "text/javascript",
            ".css": "text/css",
            ".svg": "image/svg+xml",
            ".html": "text/html",
            ".txt": "text/plain",
        }
        assert answer.headers["content-type"].partition(";")[0] == kind[path.suffix]
        again = web.get(
            f"/static/{path.relative_to(STATIC)}", headers={"If-None-Match": answer.headers["etag"]}
        )
        assert again.status_code == 304 and again.content == b""


def test_large_answers_travel_compressed() -> None:
    web = client()
    for path in ("/static/vendor/uplot-1.6.32.js", "/api/state"):
        packed = web.get(path, headers={"Accept-Encoding": "gzip"})
        plain = web.get(path, headers={"Accept-Encoding": "identity"})
        assert packed.headers["content-encoding"] == "gzip" and "content-encoding" not in plain.headers
        assert packed.num_bytes_downloaded < len(plain.content) / 2


def test_beyond_the_limit_a_reader_is_told_so() -> None:
    feed = fed()
    feed.readers = READERS
    answer = serving(feed).get("/stream")
    assert answer.status_code == 503 and "close one" in answer.json()["detail"]


def test_the_vendored_files_are_those_that_were_read() -> None:
    folder = STATIC / "vendor"
    found = {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in folder.iterdir()
        if path.name not in LICENCES
    }
    assert found == VENDORED
    assert all(re.fullmatch(r"[a-z-]+-\d+\.\d+\.\d+\.(js|css)", name) for name in found), (
        "the name carries the version"
    )


@pytest.mark.parametrize("name", LICENCES)
def test_each_vendored_library_has_its_licence_beside_it(name: str) -> None:
    text = Path(STATIC / "vendor" / name).read_text(encoding="utf-8")
    assert "opyright" in text and (
        "MIT" in text or "Apache License" in text or "Permission is hereby granted" in text
    )
