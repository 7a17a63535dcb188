"""Emits Faulted events while a part of a peer fails, and Recovered when it works again.

FaultReport    one part: Faulted at the first failure and each 60 s while it fails, Recovered when it works
FaultReports   a learner's parts: as FaultReport each, all Recovered at the next step
DiskFaults     the disk, by purpose: as FaultReport each, Recovered when it accepts everything again
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Callable

from peers.runtime.kernel import Kernel
from swarm import events
from swarm.limits import remember
from swarm.protocol import Kind, Part

REPEAT_AFTER = 60.0
"""Seconds after which a lasting failure is reported again, with its newest reason, for observers that joined
later."""


KINDS = 64
"""Kinds of damage that are remembered: a peer keeps some dozen kinds of files."""

_NUMBERS = re.compile(r"[0-9a-f]*[0-9][0-9a-f]*")
"""Digests are numbers, too."""


class FaultReport:
    def __init__(self, kernel: Kernel, part: Part) -> None:
        self._kernel, self._part = kernel, part
        self._failing: tuple[float, float] | None = None
        """(since when it fails, when it was last reported)."""

    def failed(self, detail: str) -> None:
        now = self._kernel.now()
        since, reported = self._failing or (now, now - REPEAT_AFTER)
        if now - reported >= REPEAT_AFTER:
            self._kernel.emit(events.Faulted, part=self._part, detail=detail)
            reported = now
        self._failing = (since, reported)

    def recovered(self) -> None:
        """The part works. Call it after every success."""
        if self._failing is not None:
            self._kernel.emit(
                events.Recovered, part=self._part, seconds=round(self._kernel.now() - self._failing[0], 2)
            )
            self._failing = None


class FaultReports:
    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel
        self._reports: dict[Part, FaultReport] = {}
        """Of the parts that failed since the last step."""

    def failed(self, part: Part, detail: str) -> None:
        self._reports.setdefault(part, FaultReport(self._kernel, part)).failed(detail)

    def policy_lost(self, why: str) -> None:
        """A rank process of the learner was lost, and the policy with it."""
        self.failed(Part.LEARNER, f"{why}: going on from the newest release with a fresh optimizer")

    def recovered(self) -> None:
        """All parts work: a step was taken."""
        for report in self._reports.values():
            report.recovered()
        self._reports = {}


class DiskFaults:
    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel
        self._refused: set[str] = set()
        """Purposes whose last write the disk refused."""
        self._reported: dict[str, float] = {}
        """Purpose that the disk ever refused -> when that was last reported: a nearly full disk accepts some
        writes and refuses others, in turns."""
        self._since: float | None = None
        """When the current, reported failure began."""
        self._lost: OrderedDict[str, float] = OrderedDict()
        """Kind of lost data, without numbers -> when its loss was last reported."""

    @property
    def refuses(self) -> bool:
        """Whether the disk did not take something when it was given it last."""
        return bool(self._refused)

    async def write(
        self, what: str, lost: str, kind: Kind, function: Callable[..., object], *args: object
    ) -> bool:
        """Write `what` by `function(*args)`, work of that kind, and report the result: `lost`, a sentence,
        and the reason, where the disk refuses it. Returns whether the disk accepted it."""
        try:
            await self._kernel.ports.work.run(kind, function, *args)
        except OSError as error:
            self.report(what, f"{lost}: {error.strerror}")
            return False
        self.report(what, "")
        return True

    def damaged(self, what: str) -> None:
        """Report data that the disk lost. Damages that differ in numbers alone, such as a version, count as
        one: reported once in REPEAT_AFTER."""
        kind, now = _NUMBERS.sub("#", what), self._kernel.now()
        if now - self._lost.get(kind, now - REPEAT_AFTER) >= REPEAT_AFTER:
            remember(self._lost, kind, now, KINDS)
            self._kernel.emit(events.Faulted, part=Part.DISK, detail=what)

    def report(self, what: str, why: str) -> None:
        """Report the result of writing `what`: the reason of a refusal, a sentence; empty when the disk
        accepted it."""
        now = self._kernel.now()
        if why:
            self._refused.add(what)
            if now - self._reported.get(what, now - REPEAT_AFTER) >= REPEAT_AFTER:
                self._reported[what] = now  # before the event: the journal may be what the disk refuses
                self._since = now if self._since is None else self._since
                self._kernel.emit(events.Faulted, part=Part.DISK, detail=why)
            return
        self._refused.discard(what)
        if self._since is not None and not self._refused:
            since, self._since = self._since, None
            self._kernel.emit(events.Recovered, part=Part.DISK, seconds=round(now - since, 2))
