"""Answers that were made a moment ago are given again, so that many who ask cost one who makes them.

    GET, path, what the page knows of the query --made within FRESH seconds--> the same answer
                                                --else--> the application

An answer is kept as it goes out, compressed. Streams are made for each reader (dashboard.serve.feed shares
their texts), and so are answers to conditions and parts. Not handled here: whose requests are heard, and who
pays for what has to be made (dashboard.serve.doors).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from urllib.parse import parse_qsl

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

FRESH = 1.0
"""Seconds for which an answer is given again: less than anybody who polls waits, and long enough that what
takes 5 ms to make is under way when one request in a hundred comes."""

KEPT, LARGEST = 64, 16 << 20
"""Answers, and bytes of all of them. A page asks for forty, of two megabytes."""

KNOWN = frozenset({"after", "at", "name", "window"})
"""Parameters that change an answer; all others are ignored, here too."""

OWN = ("range", "if-none-match", "if-modified-since", "if-range")
"""Headers whose answers are for who asks alone."""

Key = tuple[str, str, bool, tuple[tuple[str, str], ...]]


class Rendered:
    """A layer around the application."""

    def __init__(self, app: ASGIApp, clock: Callable[[], float] = time.monotonic) -> None:
        self._app, self._clock = app, clock
        self._since = 0.0
        self._made: dict[Key, list[Message]] = {}
        self._size = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if (now := self._clock()) - self._since > FRESH:
            self._since, self._made, self._size = now, {}, 0
        if (key := _key(scope)) is None:
            await self._app(scope, receive, send)
        elif (made := self._made.get(key)) is not None:
            for message in made:
                await send(message)
        else:
            await self._make(key, scope, receive, send)

    async def _make(self, key: Key, scope: Scope, receive: Receive, send: Send) -> None:
        messages = list[Message]()

        async def noted(message: Message) -> None:
            messages.append(message)
            await send(message)

        await self._app(scope, receive, noted)
        size = sum(len(message.get("body", b"")) for message in messages)
        if (
            messages
            and messages[0]["status"] == 200
            and self._size + size <= LARGEST
            and len(self._made) < KEPT
        ):
            self._made[key] = messages
            self._size += size


def _key(scope: Scope) -> Key | None:
    """What an answer depends on; None where it is not given again."""
    if scope["type"] != "http" or scope["method"] != "GET" or scope["path"].endswith("/stream"):
        return None
    headers = Headers(scope=scope)
    if any(name in headers for name in OWN):
        return None
    asked = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
    known = tuple(pair for pair in asked if pair[0] in KNOWN)
    return scope["path"], headers.get("host", ""), "gzip" in headers.get("accept-encoding", ""), known
