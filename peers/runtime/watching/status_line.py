"""The live status line of `swarm join`: this peer's activity, in one sentence.

    PeerStatus --sentence--> "version 41, 312 groups sent, 300 admitted, 5,400 tokens/s, 1.2 versions behind,
                              mostly generation (1.5 s), credit 24; sampling"

On a terminal the line changes in place, once a second, below all other output; in a log or a pipe there is
one at the start, one with the first policy and one every half minute where anything changed. At the end
there is a sum of groups, tokens, hours, share and accuracy. The dashboard, `swarm status` and `swarm why` say
more.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from rich.live import Live
from rich.text import Text

from dashboard.text import how_far
from peers.console import drawable, optional_console
from peers.errors import notify, say
from peers.runtime.host import Host
from peers.runtime.limits import idle
from peers.runtime.membership.renewal import ending
from peers.runtime.watching.clock_check import wrong_clock
from peers.runtime.watching.status import Meter, PeerStatus
from swarm.protocol import PHASES, STAGES, Role
from swarm.types import Fetching, Lag

EVERY = 1.0
"""Seconds between two updates of the line on a terminal."""

REPEATED = 30.0
"""Seconds between two lines in a log, at least."""

CAUSES = {
    "download": "fetching policies",
    "queue": "policies that wait",
    "generation": "generation",
    "upload": "sending",
    "inbox": "the learners' inboxes",
}
"""Part of a group's age, as in swarm.types.Lag -> its name in the line."""


def sentence(status: PeerStatus, role: Role, now: float, credit: int = 0, why: str = "") -> str:
    """One sentence: version, progress of a long stage, work done, tokens a second, lag and its main cause,
    credit; then the phase and `why` it is idle."""
    done = {
        Role.SAMPLER: (
            f"{status.admitted + status.refused + status.inbox:,} groups sent, {status.admitted:,} admitted"
            + (f", {status.refused:,} refused" if status.refused else "")
        ),
        Role.LEARNER: f"{status.admitted:,} groups admitted, {status.done:,} trained",
        Role.OBSERVER: "a mirror",
        Role.AUDITOR: f"{status.done:,} groups replayed",
    }.get(role, f"{status.done:,} versions evaluated")
    version = status.mirror if role is Role.OBSERVER else status.version
    parts = [f"version {version}" if version >= 0 else "no policy yet"]
    if (work := status.work.progress(now)) is not None:
        left = work.left if work.left >= 0 else None
        parts.append(how_far(work.stage, STAGES[work.stage], work.done, work.total, left))
    parts.append(done)
    if rate := status.tokens.rate(now):
        parts.append(f"{rate:,.0f} tokens/s")
    parts += _behind(status.lag, role)
    if credit:
        parts.append(f"credit {credit}")
    return f"{', '.join(parts)}; {PHASES[status.phase]}" + (f": {why}" if why else "")


def _behind(lag: Lag, role: Role) -> list[str]:
    if lag.versions <= 0:
        return []
    if role is Role.LEARNER:
        return [f"groups {lag.versions:.1f} versions old"]
    name, seconds = max(((name, getattr(lag, name)) for name in CAUSES), key=lambda cause: cause[1])
    mostly = f", mostly {CAUSES[name]} ({seconds:.1f} s)" if seconds else ""
    return [f"{lag.versions:.1f} versions behind{mostly}"]


@asynccontextmanager
async def live_line(host: Host) -> AsyncIterator[None]:
    """Show the line on stderr while the body runs, and a sum after it."""
    line = StatusLine(host)
    async with asyncio.TaskGroup() as tasks:
        showing = tasks.create_task(line.show())
        try:
            yield
        finally:
            showing.cancel()
            say(line.sum())


class StatusLine:
    def __init__(self, host: Host) -> None:
        self._host, self._contribution = host, ContributionSummary(host)
        self._arrived = Meter()
        """Bytes of the current download."""
        self._coming: Fetching | None = None

    async def show(self) -> None:
        """Show it until cancelled."""
        console = optional_console("stderr")
        if not drawable(console):
            return await self._print(say)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._print(notify))
            # Without a thread that refreshes it: processes are forked while it lives.
            with Live(console=console, auto_refresh=False, transient=True) as live:
                while True:
                    live.update(Text(self._line(), no_wrap=True, overflow="ellipsis"), refresh=True)
                    await self._host.ports.clock.sleep(EVERY)

    def sum(self) -> str:
        """The peer's contribution."""
        self._contribution.look()
        return self._contribution.sentence()

    async def _print(self, take: Callable[[str], None]) -> None:
        had, at, before = None, 0.0, ""
        while True:
            self._look()
            # A line at every change of phase would be many a minute.
            has, now = self._host.status.version >= 0, self._host.now()
            if has is not had or (now - at >= REPEATED and self._line() != before):
                take(before := self._line())
                had, at = has, now
            await self._host.ports.clock.sleep(EVERY)

    def _look(self) -> None:
        """Once a second: new releases, and the progress of a download."""
        self._contribution.look()
        before, self._coming = self._coming, self._host.releases.coming()
        if before is not None and self._coming is not None:
            self._arrived.add(max(0, self._coming.held - before.held), self._host.now())

    def _line(self) -> str:
        host, now = self._host, self._host.now()
        sampler = host.who.role is Role.SAMPLER
        credit = host.roster.credit(host.steady()) if sampler else host.status.credit
        cause = idle.of(host, self._arrived.rate(now))
        parts = (
            sentence(host.status, host.who.role, now, credit, cause.short if cause is not None else ""),
            ending(host.frames.membership, now),
            wrong_clock(host.roster.wrong()),
        )
        return "; ".join(filter(None, parts))


class ContributionSummary:
    """A peer's contribution to its run, in a sentence at its end; call `look` at least as often as versions
    are forgotten."""

    def __init__(self, host: Host) -> None:
        self._host, self._since = host, host.now()
        self._version: int | None = None
        """The newest one whose groups are counted; those from before the start do not count."""
        self._trained = 0
        self._accuracies: list[float] = []
        """The first and the last that evaluators reported."""

    def look(self) -> None:
        """Count releases since the last look."""
        for release in self._host.releases.announced():
            if self._version is not None and release.version > self._version:
                self._trained += release.groups
                self._version = release.version
        if self._version is None and (newest := self._host.releases.announced()):
            self._version = newest[-1].version
        for _, beat in self._host.roster:
            if beat.role is Role.EVALUATOR and 0 <= beat.accuracy <= 1:
                self._accuracies = [*self._accuracies[:1], beat.accuracy]

    def sentence(self) -> str:
        """The sum."""
        host, status = self._host, self._host.status
        lasted = _time(host.now() - self._since)
        given = {Role.SAMPLER: status.admitted, Role.LEARNER: status.done}.get(host.who.role)
        if given is None:
            return f"this {host.who.role.value} was here for {lasted}{self._learned()}"
        verb = "gave" if host.who.role is Role.SAMPLER else "trained on"
        share = (
            f", {min(1.0, given / self._trained):.0%} of what the run trained meanwhile"
            if self._trained
            else ""
        )
        what = f"{given:,} groups in {lasted} ({status.handled:,} tokens)"
        return f"this {host.who.role.value} {verb} {what}{share}{self._learned()}"

    def _learned(self) -> str:
        if not self._accuracies:
            return ""
        return f"; held-out accuracy {self._accuracies[0]:.1%} -> {self._accuracies[-1]:.1%}"


def _time(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 3600 else f"{seconds / 3600:.1f} h"
