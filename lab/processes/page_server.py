"""Serves the page of a synthetic swarm that runs in real time, for the row `dashboard`.

    python -m lab.processes.page_server '{"peers": 500, "past": 600}'
                                             -> {"url": ...}, once the past is folded
    {"do": "times", "path": "/api/state"}    -> {"seconds": [of each answer, server side]}

A time starts when the application gets the request and ends when the server has its last byte; it includes
everything else that the event loop does meanwhile. The swarm's events are folded in the same loop, as in a
peer.
"""

from __future__ import annotations

import asyncio
import math
import sys
import time
from collections import defaultdict

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from dashboard.fold.state import State
from dashboard.serve.app import create_app
from dashboard.serve.feed import Feed
from dashboard.serve.server import serve
from lab.swarms.partner import Answer, answer_all, opened, say
from lab.swarms.synthetic_events import swarm_events

BREATH = 500
"""Events of the past between two turns of the loop."""


class Timed:
    """Around an application: how long each whole answer took, by path."""

    def __init__(self, app: ASGIApp, times: dict[str, list[float]]) -> None:
        self._app, self._times = app, times

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        began = time.perf_counter()

        async def sent(message: Message) -> None:
            await send(message)
            if message["type"] == "http.response.body" and not message.get("more_body", False):
                self._times[scope["path"]].append(time.perf_counter() - began)

        await self._app(scope, receive, sent)


async def _play(feed: Feed, peers: int, past: float, ready: asyncio.Event) -> None:
    for number, event in enumerate(swarm_events(peers, math.inf, time.time() - past)):
        if event.at > time.time():
            ready.set()
            await asyncio.sleep(event.at - time.time())
        elif number % BREATH == 0:
            await asyncio.sleep(0)
        feed(event)


async def _program(setup: Answer) -> None:
    feed, times, ready = Feed(State()), defaultdict[str, list[float]](list), asyncio.Event()
    app = create_app(feed)
    app.add_middleware(Timed, times=times)
    server = await serve(app, "127.0.0.1", 0, free=False)
    play = asyncio.create_task(_play(feed, setup["peers"], setup["past"], ready))
    await ready.wait()
    say(url=server.url)

    async def answer(asked: Answer) -> Answer:
        return {"seconds": times[asked["path"]]}

    try:
        await answer_all(answer)
    finally:
        play.cancel()
        await server.close()


def main() -> int:
    asyncio.run(_program(opened()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
