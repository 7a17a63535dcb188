"""Row `dashboard`: the page's cost in CPU, bytes and memory, and its delay from event to pixel.

    fold      events/s, and memory after a million of them against half           processes.folding
    load      /api/state, frames, long tasks, bytes/s to a browser at 500 peers   processes.page_server
    live      event to pixel; a late window's time to the whole roster            a real swarm of processes

`fold` and `load` use a synthetic swarm (lab.swarms.synthetic_events). Events have their peers' clock and
pixels the browser's, which are both this machine's. Not handled here: what the page looks like.
"""

from __future__ import annotations

import http.client
import json
import math
import re
import subprocess
import tempfile
import time
import urllib.parse
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from lab.figures.table import Figure, Gap, Line, Unmeasured
from lab.swarms.browser import chromium, watch
from lab.swarms.local_swarm import LocalSwarm, end, start
from lab.swarms.partner import Partner
from swarm import events
from swarm.protocol import Role

if TYPE_CHECKING:
    from lab.figures.table import Say

PEERS = 500
PAST = 600.0
"""Seconds of the run before the page is opened: its curves are full of points by then."""

FOLDED = 1_000_000
SMALL = 50
"""Events and peers of the fold: a swarm of that size says as much in four hours."""

FULL = {"points": 100, "events": 100, "columns": 20, "peers": 200, "samples": 8, "releases": 64}
"""Limits of a history that a fifth of those events fills."""

ASKED = 200
"""Requests of /api/state: the slowest twentieth are ten."""

LOOK = 20.0
"""Seconds in which a page is watched, scrolling from its top to its end."""

LONG = 50.0
"""Milliseconds: what a browser calls a long task, and a person a stutter."""

SETTLED = 5.0
"""Seconds after opening that count as the page's start."""

WARM = 20
"""Versions before somebody comes late."""


def measure(
    say: Say, peers: int = PEERS, past: float = PAST, folded: int = FOLDED, look: float = LOOK
) -> Iterator[Line]:
    """Each part by itself: without a browser there are the others."""
    for part in (_fold(say, folded), _load(say, peers, past, look), _live(say, look)):
        try:
            yield from part
        except Unmeasured as error:
            say(f"not measured: {error}")
            yield Gap(row="dashboard", why=str(error))


def _fold(say: Say, folded: int) -> Iterator[Figure]:
    say(f"folding {folded} events")
    with Partner("lab.processes.folding", {"peers": SMALL, "marks": [folded], "history": {}}) as child:
        done = child.hear()
    yield _figure(
        "folded", done["events"] / done["seconds"], "events/s", note=f"{SMALL} peers, {done['events']} events"
    )
    note = "resident, above the process without it; curves of 2000 points fill until version 2000"
    yield _figure(f"memory of the State after {folded} events", done["mib"][0], "MiB", note=note)
    say("folding them into a small history")
    marks = [folded // 2, folded]
    with Partner("lab.processes.folding", {"peers": SMALL, "marks": marks, "history": FULL}) as child:
        early, late = child.hear()["mib"]
    note = (
        "its limits so low that all are reached before the first mark: what still grows would grow for ever"
    )
    yield _figure(
        f"memory of a full State after {folded} events",
        late,
        "MiB",
        against=f"after {marks[0]}",
        other=early,
        note=note,
    )


# --- a made-up swarm of many peers --------------------------------------------------------------------------


def _load(say: Say, peers: int, past: float, look: float) -> Iterator[Figure]:
    say(f"folding {past:.0f} s of {peers} peers")
    with Partner("lab.processes.page_server", {"peers": peers, "past": past}) as page:
        url = page.hear()["url"]
        say("asking for /api/state")
        yield _answers(page, url, peers)
        yield _stream(url, peers, look)
        say("looking at the page")
        yield from _page(url, peers, look)


def _answers(page: Partner, url: str, peers: int) -> Figure:
    connection, size = http.client.HTTPConnection(urllib.parse.urlsplit(url).netloc, timeout=30.0), 0
    waited = []
    for _ in range(ASKED):
        began = time.perf_counter()
        connection.request("GET", "/api/state")
        size = len(connection.getresponse().read())
        waited.append(time.perf_counter() - began)
        time.sleep(0.02)
    served = page.ask(do="times", path="/api/state")["seconds"]
    note = (
        f"server side, median {1000 * median(served):.1f} ms; {size / 1000:.0f} kB, at the client p95"
        f" {1000 * p95(waited):.1f} ms"
    )
    return _figure(f"/api/state, p95, {peers} peers", 1000 * p95(served), "ms", note=f"{note}; aim 10 ms")


def _stream(url: str, peers: int, look: float) -> Figure:
    """Bytes that one reader gets, as a browser asks for them; without the first, full view."""
    connection = http.client.HTTPConnection(urllib.parse.urlsplit(url).netloc, timeout=30.0)
    connection.request(
        "GET",
        "/stream",
        headers={"Accept": "text/event-stream", "Accept-Encoding": "gzip, deflate, br, zstd"},
    )
    answer = connection.getresponse()
    first, sent, began = 0, 0, time.monotonic()
    while time.monotonic() < began + SETTLED / 2:
        first += len(answer.read1(1 << 20))
    began = time.monotonic()
    while (spent := time.monotonic() - began) < look:
        sent += len(answer.read1(1 << 20))
    connection.close()
    note = (
        f"compressed, over {look:.0f} s; the first {SETTLED / 2:g} s with the whole view"
        f" {first / 1000:.0f} kB"
    )
    return _figure(f"to one browser, {peers} peers", sent / spent / 1000, "kB/s", note=note)


def _page(url: str, peers: int, look: float) -> Iterator[Figure]:
    with chromium() as browser:
        page = browser.new_page(viewport={"width": 1280, "height": 900})
        watch(page)
        page.goto(url)
        page.wait_for_timeout(1000 * SETTLED)
        settled = page.evaluate("performance.now()")
        deadline = time.monotonic() + look
        while time.monotonic() < deadline:
            page.mouse.wheel(0, 120)
            page.wait_for_timeout(100)
        seen: dict[str, Any] = page.evaluate("bench")
    starting = [length for at, length in seen["long"] if at < settled]
    running = [length for at, length in seen["long"] if at >= settled]
    frames = [length for at, length in seen["frames"] if at >= settled]
    what = f"{look:.0f} s of scrolling, {len(frames)} frames, median {median(frames):.1f} ms"
    yield _figure(f"a frame of the page, p95, {peers} peers", p95(frames), "ms", note=what)
    note = (
        f"longest {max(running, default=0):.0f} ms; while it starts {len(starting)}, longest"
        f" {max(starting, default=0):.0f} ms"
    )
    yield _figure(
        f"long tasks over {LONG:.0f} ms, {peers} peers",
        float(len(running)),
        "tasks",
        note=f"{note}; aim none",
    )


# --- a real swarm -------------------------------------------------------------------------------------------


def _live(say: Say, look: float) -> Iterator[Figure]:
    say("starting a real swarm")
    with LocalSwarm() as home, tempfile.TemporaryDirectory(prefix="swarm-bench-") as folder:
        for role in (Role.LEARNER, Role.SAMPLER, Role.SAMPLER, Role.EVALUATOR):
            home.join(role)
        home.until(f"version {WARM}", lambda: _trained(home, WARM))
        say("a window comes late")
        word = (home.folder / "invites" / Role.OBSERVER).read_text()
        began = time.monotonic()
        log = Path(folder) / "log"
        with open(log, "wb") as out:
            window = start(
                ["dashboard", word, "--folder", str(Path(folder) / "run"), "--port", "0"], out.fileno()
            )
        try:
            url = _served(home, window, log)
            up = time.monotonic() - began
            home.until("the whole roster", lambda: _alive(url) >= len(home.processes))
            note = (
                f"{len(home.processes)} peers; from the command, of which {up:.1f} s until its page answers;"
                " aim 5 s"
            )
            yield _figure("whole roster in a late window", time.monotonic() - began, "s", note=note)
            say("from events to pixels")
            yield _pixels(home, url, look)
        finally:
            end([window])


def _trained(home: LocalSwarm, version: int) -> bool:
    return any(
        isinstance(event, events.Trained) and event.version >= version for event in home.events("learner-1")
    )


def _served(home: LocalSwarm, window: subprocess.Popen[bytes], log: Path) -> str:
    """The page's address, from what the command says."""

    def said() -> list[str]:
        if window.poll() is not None:
            lines = log.read_text(errors="replace").splitlines() or ["it said nothing"]
            raise Unmeasured(f"`swarm dashboard` ended with code {window.returncode}: {lines[-1]}")
        return re.findall(r"http://\S+", log.read_text(errors="replace"))

    home.until("the late window's page", lambda: bool(said()))
    return said()[0]


def _alive(url: str) -> int:
    """Peers that the window has heard."""
    connection = http.client.HTTPConnection(urllib.parse.urlsplit(url).netloc, timeout=5.0)
    connection.request("GET", "/api/peers")
    rows = json.loads(connection.getresponse().read())
    connection.close()
    return sum(row["status"] == "alive" and row["role"] != Role.OBSERVER for row in rows)


def _pixels(home: LocalSwarm, url: str, look: float) -> Figure:
    with chromium() as browser:
        page = browser.new_page(viewport={"width": 1280, "height": 900})
        watch(page)
        page.goto(url)
        page.wait_for_timeout(1000 * SETTLED)
        settled = page.evaluate("performance.timeOrigin + performance.now()") / 1000
        page.wait_for_timeout(1000 * look)
        shown = [(version, at / 1000) for version, at in page.evaluate("bench.shown")]
    made = {
        e.release.version: e.at
        for e in home.events("learner-1")
        if isinstance(e, events.Released) and e.at > settled
    }
    newest = max((version for version, _ in shown), default=-1)
    waits = [
        min(at for version, at in shown if version >= new) - at for new, at in made.items() if new <= newest
    ]
    if not waits:
        raise Unmeasured("no release was made and painted while the page was watched")
    note = (
        f"a release at the learner until its version is painted, {len(waits)} of them, median"
        f" {median(waits):.2f} s; aim 0.5 s"
    )
    return _figure("event to pixel on a live swarm, p95", p95(waits), "s", note=note)


def _figure(what: str, value: float, unit: str, **more: Any) -> Figure:
    return Figure(row="dashboard", what=what, value=value, unit=unit, **more)


def p95(values: Sequence[float]) -> float:
    """The smallest value that at most a twentieth exceeds."""
    return sorted(values)[math.ceil(0.95 * len(values)) - 1]
