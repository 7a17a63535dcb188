"""Row `strangers`: how long an honest request to a node's mail and to its page takes while strangers try to
close them, beside how long it takes when nobody does.

    besieged (a node, a page) <==== crowd (KEYS keys with 32 streams each; 288 connections of 32 addresses)
                              <---- one honest request after the other, from this process; the page's visitor
                                    has an address of its own, and opens a connection for each ten

A request that is refused, or not answered within LATE, counts as LATE. All of these share the machine's
cores; the crowd runs when nobody else does, since it has machines of its own elsewhere. Not handled: gossip
and the board, whose limits are counted (tests/core/test_gossip_limits.py, tests/net/test_guard.py), and a
line that is full.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from lab.figures.priority import step_back
from lab.figures.table import Figure
from lab.processes import hosted
from lab.processes.crowd import ASK, LISTEN, RUN, SERVICE
from lab.swarms.partner import Partner
from swarm.net.ports import NetError

if TYPE_CHECKING:
    from lab.figures.table import Say

KEYS, REQUESTS = 9, 200
APART, WARM, LATE = 0.03, 3.0, 5.0
"""Seconds between two requests, from the crowd's begin to the first one, and until one counts as lost."""

SELDOM = 0.2
"""Seconds between two of a visitor: what it may ask for without a pause is over otherwise."""

WAYS = ("half-open", "slow", "many keys")
PAGE_WAYS = (*WAYS, "heavy", "deaf", "from here")
VISITOR, REUSED = "127.0.2.1", 10
"""Its address, and its requests over one connection."""

Ask = Callable[[], Awaitable[bool]]


def measure(say: Say, requests: int = REQUESTS, keys: int = KEYS) -> list[Figure]:
    with tempfile.TemporaryDirectory(prefix="swarm-bench-") as folder:
        home = {name: Path(folder) / name for name in ("server", "crowd", "honest")}
        for path in home.values():
            path.mkdir()
        with Partner("lab.processes.besieged", {"folder": str(home["server"])}) as server:
            at = server.hear()
            setup = {**at, "folder": str(home["crowd"]), "keys": keys}
            with Partner("lab.processes.crowd", setup) as crowd:
                crowd.hear()
                step_back(crowd.pid)
                return asyncio.run(_figures(say, at, server, crowd, home["honest"], requests))


async def _figures(
    say: Say, at: dict[str, Any], server: Partner, crowd: Partner, home: Path, requests: int
) -> list[Figure]:
    figures = []
    async with hosted.node(home, RUN, LISTEN, (at["address"],)) as (node, keyring):

        async def mailed() -> bool:
            return bool(await node.mail.send(at["peer"], SERVICE, b"x" * 16, timeout=LATE))

        visitor = Visitor(at["page"])
        for place, who, ask in (
            ("mail", "a stranger", mailed),
            ("mail", "who has delivered", mailed),
            ("page", "a visitor", visitor.ask),
        ):
            server.ask(do="prefer", peer=keyring.me if who == "who has delivered" else "")
            page = place == "page"
            apart = SELDOM if page else APART
            count = requests // 2 if page else requests
            quiet = await _seconds(ask, count, apart)
            for way in PAGE_WAYS if page else WAYS:
                crowd.ask(do=f"{place} {way}")
                await asyncio.sleep(WARM)
                loud = await _seconds(ask, count, apart)
                crowd.ask(do="rest")
                await asyncio.sleep(WARM)
                figure = _figure(place, who, way, loud, quiet)
                say(f"{figure.what}: {figure.value:.1f} ms against {figure.other:.1f}; {figure.note}")
                figures.append(figure)
    return figures


class Visitor:
    """Asks the page from an address of its own, over a connection that it keeps for some requests, as a
    browser does."""

    def __init__(self, port: int) -> None:
        self._port, self._left = port, 0

    async def ask(self) -> bool:
        """Whether it was answered. Raises OSError, EOFError."""
        if not self._left:
            here = (VISITOR, 0)
            self._reader, self._writer = await asyncio.open_connection(
                LISTEN.host, self._port, local_addr=here
            )
        self._left = (self._left or REUSED) - 1
        try:
            self._writer.write(ASK)
            head = await self._reader.readuntil(b"\r\n\r\n")
            await self._reader.readexactly(int(head.lower().split(b"content-length: ")[1].split()[0]))
        except BaseException:
            self._left = 0
            raise
        finally:
            if not self._left:
                self._writer.close()
        return head.startswith(b"HTTP/1.1 200")


async def _seconds(ask: Ask, requests: int, apart: float) -> list[float]:
    """Of one request after the other."""
    taken = []
    for _ in range(requests):
        began = time.perf_counter()
        try:
            async with asyncio.timeout(LATE):
                good = await ask()
        except (NetError, OSError, EOFError):
            good = False
        taken.append(time.perf_counter() - began if good else LATE)
        await asyncio.sleep(apart)
    return taken


def _figure(place: str, who: str, way: str, loud: list[float], quiet: list[float]) -> Figure:
    lost = f"{sum(seconds >= LATE for seconds in loud)} of {len(loud)} lost"
    return Figure(
        row="strangers",
        what=f"{place}, p99 of {who}, strangers {way}",
        value=1000 * _p99(loud),
        unit="ms",
        against="nobody else",
        other=1000 * _p99(quiet),
        note=f"median {1000 * median(loud):.1f} against {1000 * median(quiet):.1f}; {lost}",
    )


def _p99(seconds: list[float]) -> float:
    return sorted(seconds)[max(0, -(-99 * len(seconds) // 100) - 1)]
