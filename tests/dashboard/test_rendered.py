"""Answers that were made a moment ago are given again."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from starlette.types import Receive, Scope, Send

from dashboard.serve.rendered import FRESH, KEPT, LARGEST, Rendered


class Application:
    """Counts what it makes."""

    def __init__(self) -> None:
        self.made, self.status, self.size = 0, 200, 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.made += 1
        await send({"type": "http.response.start", "status": self.status, "headers": [(b"a", b"b")]})
        await send({"type": "http.response.body", "body": b"%d" % self.made + bytes(self.size)})


class Page:
    def __init__(self) -> None:
        self.now, self.application = 100.0, Application()
        self.rendered = Rendered(self.application, lambda: self.now)

    def ask(self, path: str = "/api/state", query: str = "", method: str = "GET", **headers: str) -> Any:
        sent = list[Any]()

        async def send(message: Any) -> None:
            sent.append(message)

        named = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
        scope = {
            "type": "http",
            "method": method,
            "path": path,
            "query_string": query.encode(),
            "headers": named,
        }
        asyncio.run(self.rendered(scope, None, send))  # type: ignore[arg-type]
        assert sent[0]["headers"] == [(b"a", b"b")]
        return sent[1]["body"]


def test_what_many_ask_for_is_made_once_and_anew_after_a_while() -> None:
    page = Page()
    assert {page.ask() for _ in range(9)} == {b"1"}
    page.now += FRESH + 0.01
    assert {page.ask() for _ in range(9)} == {b"2"}


def test_what_the_page_ignores_makes_no_other_answer() -> None:
    page = Page()
    assert {page.ask(query=query) for query in ("", "x=1", "x=2&y=3", "at%20=1")} == {b"1"}


@pytest.mark.parametrize(
    "other",
    [
        {"path": "/metrics"},
        {"query": "after=7"},
        {"query": "name=reward&window=1"},
        {"host": "127.0.0.1"},
        {"accept_encoding": "gzip, br"},
    ],
)
def test_what_changes_an_answer_makes_another(other: dict[str, str]) -> None:
    page = Page()
    page.ask()
    assert page.ask(**other) == b"2" and page.ask(**other) == b"2" and page.ask() == b"1"


@pytest.mark.parametrize(
    "own",
    [
        {"path": "/stream"},
        {"path": "/swarm/stream"},
        {"method": "HEAD"},
        {"if_none_match": "a"},
        {"range": "bytes=0-"},
    ],
)
def test_what_is_for_who_asks_alone_is_made_for_each(own: dict[str, str]) -> None:
    page = Page()
    assert page.ask() == b"1"
    assert [page.ask(**own), page.ask(**own)] == [b"2", b"3"]


def test_errors_and_what_is_too_large_or_too_much_is_not_kept() -> None:
    page = Page()
    page.application.status = 404
    assert [page.ask(), page.ask()] == [b"1", b"2"]
    page.application.status, page.application.size = 200, LARGEST
    page.ask()
    page.ask()
    assert page.application.made == 4
    page.application.size = 0
    for number in range(2 * KEPT):
        page.ask(query=f"after={number}")
    assert len(page.rendered._made) == KEPT
