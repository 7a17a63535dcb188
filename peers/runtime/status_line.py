"""The live status line of `swarm join`: what this peer is doing, in one sentence.

    PeerStatus --sentence--> "version 41, 312 groups admitted, 1.2 versions behind, 5,400 tokens/s; sampling"

On a terminal the line changes in place, once a second, below whatever else is printed; in a log or a pipe
there is one at the start, one with the first policy and one every minute. The page and `swarm status` say
more.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from rich.console import Console
from rich.live import Live
from rich.text import Text

from peers.errors import say
from peers.runtime.clock_check import wrong_clock
from peers.runtime.host import Host
from peers.runtime.membership_renewal import ending
from peers.runtime.status import PeerStatus
from swarm.protocol import PHASES, Role

EVERY = 1.0
"""Seconds between two updates of the line on a terminal."""

REPEATED = 60.0
"""Seconds between two lines in a log."""


def sentence(status: PeerStatus, role: Role, now: float) -> str:
    """One sentence: version, work done, versions behind, tokens a second; then the phase and why it is
    idle."""
    done = {
        Role.SAMPLER: (
            f"{status.admitted:,} groups admitted"
            + (f", {status.refused:,} refused" if status.refused else "")
        ),
        Role.LEARNER: f"{status.admitted:,} groups admitted, {status.done:,} trained",
        Role.OBSERVER: "a mirror",
    }.get(role, f"{status.done:,} versions evaluated")
    version = status.mirror if role is Role.OBSERVER else status.version
    parts = [f"version {version}" if version >= 0 else "no policy yet", done]
    if status.lag.versions > 0:
        parts.append(f"{status.lag.versions:.1f} versions behind")
    if rate := status.tokens.rate(now):
        parts.append(f"{rate:,.0f} tokens/s")
    doing = PHASES[status.phase]
    return f"{', '.join(parts)}; {doing.text}" + (f": {doing.why}" if doing.why else "")


@asynccontextmanager
async def live_line(host: Host) -> AsyncIterator[None]:
    """Show the line on stderr while the body runs."""
    async with asyncio.TaskGroup() as tasks:
        showing = tasks.create_task(_show(host))
        try:
            yield
        finally:
            showing.cancel()


async def _show(host: Host) -> None:
    console = Console(stderr=True)
    if not console.is_terminal:
        return await _print(host)
    # Without a thread that refreshes it: processes are forked while it lives.
    with Live(console=console, auto_refresh=False, transient=True) as live:
        while True:
            line = Text(_line(host), no_wrap=True, overflow="ellipsis")
            live.update(line, refresh=True)
            await host.ports.clock.sleep(EVERY)


def _line(host: Host) -> str:
    now = host.now()
    parts = (
        sentence(host.status, host.who.role, now),
        ending(host.frames.membership, now),
        wrong_clock(host.roster.wrong()),
    )
    return "; ".join(filter(None, parts))


async def _print(host: Host) -> None:
    had, at = None, 0.0
    while True:
        # A line at every change of phase would be many a minute.
        has, now = host.status.version >= 0, host.now()
        if has is not had or now - at >= REPEATED:
            say(_line(host))
            had, at = has, now
        await host.ports.clock.sleep(EVERY)
