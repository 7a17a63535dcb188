"""Commands on a run of this machine: `status` shows it, `leave` stops its peers."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from dashboard.fold.folds import fold
from dashboard.fold.state import SwarmState
from dashboard.serve.state_view import view_of
from dashboard.serve.terminal import render
from dashboard.text import duration
from peers.build import run_folder
from peers.commands.journals import journals
from peers.commands.runs.leaving import Leaving
from peers.console import Listing, drawable
from peers.errors import CannotHere, WrongUsage, say
from peers.runtime import peer_folder
from peers.runtime.limits import pause
from peers.runtime.signals import FINISHING, LEAVE_PATIENCE
from swarm.journal import Tail
from swarm.settings.config import Config

LISTEN = 5.0
"""Seconds that an observer listens when no seed answers: two heartbeats of every peer."""

LOOK = 0.5
"""Seconds between two redraws."""

PRINTED = 5.0
"""Seconds between two prints where nothing can be redrawn."""

TOLD_AFTER = 1.0
"""Seconds that `leave` waits silently."""


def status(folder: Path | None, word: str | None, config: Config, watch: bool, as_json: bool) -> int:
    """Show the state of the run on this machine, from its journals; with an invite, of the swarm that it
    names. Raises WrongUsage."""
    if watch and as_json:
        raise WrongUsage("--watch goes on, --json prints once: leave one out")
    if word is not None:
        return _observe(word, folder, config, watch, as_json)
    assert folder is not None
    run = run_folder.opened(folder)
    if (until := pause.until(folder, now := time.time())) is not None:
        say(f"the peers of {folder} are paused {pause.sentence(until, now)}")
    state = SwarmState(run.settings)
    tails = list[Tail]()

    def read(state: SwarmState) -> tuple[SwarmState, float]:
        """The state with new events, and the time by the clock of the writing peers."""
        nonlocal tails
        tails = tails or journals.tails(folder)
        for tail in tails:
            for event in tail.news():
                if len(tails) == 1:
                    state = journals.followed(state, event)
                else:
                    fold(state, event)
        return state, journals.now([tail.path for tail in tails], state.last, time.time())

    state, now = read(state)
    if not watch:
        at, old, quiet = _asleep(state, now, folder)
        if old:
            say(old)
        _show(state, at, as_json, quiet)
        return 0
    with _screen() as (console, put, every):
        while True:
            at, old, quiet = _asleep(state, now, folder)
            shown = render(state, at, console.width, quiet=quiet)
            put(Group(Text(old, "yellow"), Text(), shown) if old else shown)
            time.sleep(every)
            state, now = read(state)


@contextlib.contextmanager
def _screen() -> Iterator[tuple[Console, Callable[[RenderableType], None], float]]:
    """Where --watch shows the state, what puts a view there, and the seconds between two views. On a terminal
    each takes the place of the one before; elsewhere they follow each other, with an empty line between."""
    console = Listing()
    if drawable(console):
        with Live(console=console, refresh_per_second=4) as live:
            yield console, live.update, LOOK
    else:
        yield console, lambda view: console.print(Group(view, Text())), PRINTED


def _asleep(state: SwarmState, now: float, folder: Path) -> tuple[float, str, float]:
    """The time that a folder's state describes, a sentence where that is past, and seconds since the last
    event. Where no peer runs it is the time of the last event: nothing was received from then on, so the
    silence of other peers means nothing, and none of the folder's own peers is present."""
    if peer_folder.running(folder):
        return now, "", max(now - state.last, 0.0)
    if not state.last:
        says = (
            f"no journal of {folder} tells of a peer: none has run there, or its folder peers/ was removed;"
            f" `swarm join` with --folder {folder} starts one"
        )
        return now, says, 0.0
    state.ended(filter(None, map(peer_folder.peer_of, sorted(folder.glob("peers/*")))))
    past = max(time.time() - state.last, 0.0)
    return state.last, f"no peer of {folder} runs: this is what was known {duration(past)} ago", past


def _show(state: SwarmState, at: float, as_json: bool, quiet: float) -> None:
    """Print the state at a time, `quiet` seconds after the last event."""
    if as_json:
        print(msgspec.json.encode(view_of(state, at, quiet=quiet)).decode())
    else:
        console = Listing()
        console.print(render(state, at, console.width, quiet=quiet))


def _observe(word: str, folder: Path | None, config: Config, watch: bool, as_json: bool) -> int:
    """Join as an observer: show the history that a seed sends, or what arrives in LISTEN seconds; with
    `watch` until a signal."""
    from peers.build import watching

    async def look(watched: watching.WatchedSwarm) -> None:
        feed = watched.observer.feed
        if watch:
            with _screen() as (console, put, every):
                while not watched.leaving.is_set():
                    put(render(feed.state, feed.clock(), console.width))
                    await _wait(watched.leaving, every)
            return
        if not watched.has_history:
            await _wait(watched.leaving, LISTEN)
        _show(feed.state, now := feed.clock(), as_json, max(now - feed.state.last, 0.0))

    return watching.observe(word, folder, config, not watch, look)


async def _wait(leaving: asyncio.Event, seconds: float) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await leaving.wait()


def leave(folder: Path) -> int:
    """Ask the peers of this folder to finish and leave; wait until they have. Raises WrongUsage for a folder
    without a run and peers, CannotHere when some have not left within LEAVE_PATIENCE."""
    peers = peer_folder.running(folder)
    if not peers and run_folder.spec_content(folder) is None:
        raise run_folder.no_run(folder)
    if not peers:
        say(f"no peer of {folder} is running")
        return 0
    # `swarm up` restarts its children: ask it, and it asks them.
    asked = {"up": peers["up"]} if "up" in peers else peers
    if nameless := [folder / "peers" / name / "pid" for name, pid in asked.items() if not pid]:
        raise CannotHere(
            f"{nameless[0]} does not say which process it is, since the disk lost or refused it, or another"
            f" machine or container runs it: `fuser {nameless[0]}` does, and `kill` asks it to leave"
        )
    began, told = time.monotonic(), False
    leaving = Leaving(asked, began)
    while (left := peer_folder.running(folder)) and (now := time.monotonic()) < began + LEAVE_PATIENCE:
        for name in leaving.asked([name for name in asked if name in left], now):
            with contextlib.suppress(ProcessLookupError):  # it has left meanwhile
                os.kill(asked[name], signal.SIGTERM)
        if not told and now > began + TOLD_AFTER:
            told = True
            say(f"waiting for {_named(left)}: {FINISHING}, within {LEAVE_PATIENCE:.0f} s")
        elif told and (said := leaving.news(left, now)):
            say(said)
        time.sleep(0.1)
    if left:
        raise CannotHere(
            f"{_named(left)} did not leave within {LEAVE_PATIENCE:.0f} s: a peer that still finishes its"
            " group or step leaves by itself after it; `kill -9` ends it now, and that group or step is lost"
        )
    say(f"left: {', '.join(peers)}")
    return 0


def _named(peers: dict[str, int]) -> str:
    return ", ".join(f"{name} (process {pid})" for name, pid in peers.items())
