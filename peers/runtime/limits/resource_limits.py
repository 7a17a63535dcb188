"""A peer's limits on its machine: when it pauses and when it leaves, by its owner's settings
(`[peer.limits]`).

    pause file, hours, battery, processor time of others --> PauseReason --> PauseGate: the role pauses
    memory, disk beyond their limits                     --> the peer leaves, and reports the figures
    its folder, or the run's, moved or removed           --> the peer ends, and says how to resume

Limits that the kernel enforces, cores and priority, are set once, before a peer starts anything. Not handled
here: how a role pauses (peers.runtime.limits.pause_gate), the rate of its line (swarm.net.rate).
"""

from __future__ import annotations

import asyncio
import math
import os
import time
from pathlib import Path
from typing import NamedTuple

from peers.errors import CannotHere
from peers.runtime import peer_folder
from peers.runtime.kernel import Kernel
from peers.runtime.limits import machine_use, pause
from peers.runtime.limits.machine_use import CpuTicks
from peers.runtime.limits.pause_gate import PauseGate, PauseReason
from peers.runtime.peer_folder import Place
from swarm.protocol import ROLES, Phase, PolicyUse
from swarm.settings.peer_limits import Limits

GB = 1 << 30

LOOK = 1.0
"""Seconds between two checks of the pause and the hours: a user who pauses a peer waits for it."""

MEASURE = 5.0
"""Seconds between two looks at battery, memory and processor: /proc takes some milliseconds."""

SPAN = 10.0
"""Seconds over which the processor time of others is a share: a program that starts is no use yet."""

QUIET = 60.0
"""Seconds for which other programs have to be quiet: a user who is reading causes little load."""

SIZES = 12
"""Measures between two of the folder, which may have thousands of files."""

WORKS = (PolicyUse.TRAINED, PolicyUse.SAMPLED, PolicyUse.USED)
"""What roles that compute do with the policy: the others have nothing to rest from."""


def begin(limits: Limits) -> None:
    """Keep this process, and all that it starts from now on, to its share of the cores and its priority."""
    here = sorted(os.sched_getaffinity(0))
    if (count := max(1, int(limits.cpu * len(here)))) < len(here):
        first = os.getpid() % len(here)  # peers of one machine do not all take the same
        os.sched_setaffinity(0, {(here + here)[first + number] for number in range(count)})
    if limits.nice > os.getpriority(os.PRIO_PROCESS, 0):
        os.setpriority(os.PRIO_PROCESS, 0, limits.nice)


def describe(limits: Limits) -> str:
    """Description of the limits for other peers, after the hardware; empty where there are none. Those of the
    line are in the heartbeat."""
    parts = [
        (limits.cpu < 1, f"{limits.cpu:.0%} of its cores"),
        (limits.nice > 0, f"nice {limits.nice}"),
        (limits.memory > 0, f"{limits.memory:g} GB RAM"),
        (limits.gpu_memory < 1, f"{limits.gpu_memory:.0%} of its GPU"),
        (limits.disk > 0, f"{limits.disk:g} GB disk"),
        (limits.hours != "", limits.hours),
        (not limits.battery, "on mains"),
        (limits.others < 1, "when idle"),
    ]
    described = ", ".join(text for holds, text in parts if holds)
    return f"; limited: {described}" if described else ""


def within(hours: str, now: float) -> bool:
    """Whether the local time `now` is inside hours such as `22-7`; `7-7` and an empty text are all day."""
    if not hours:
        return True
    start, end = (_minutes(part) for part in hours.split("-"))
    local = time.localtime(now)
    at = 60 * local.tm_hour + local.tm_min
    return (at - start) % 1440 < ((end - start) % 1440 or 1440)


def _minutes(text: str) -> int:
    hour, _, minute = text.partition(":")
    return 60 * int(hour) + int(minute or 0)


class Sample(NamedTuple):
    at: float
    times: CpuTicks


class OthersUse:
    """Whether other programs use the processor, by samples of its times."""

    def __init__(self, most: float) -> None:
        """`most`: share that they may take."""
        self._most = most
        self._samples: list[Sample] = []
        self._until = -math.inf

    def take(self, now: float, times: CpuTicks) -> bool:
        """Whether they use it now, or did in the last minute."""
        self._samples.append(Sample(now, times))
        while len(self._samples) > 2 and now - self._samples[1].at >= SPAN:
            del self._samples[0]
        first = self._samples[0]
        if now - first.at >= SPAN and times.others_since(first.times) > self._most:
            self._until = now + QUIET
        return now < self._until


class ResourceLimits:
    """Enforces one peer's limits; `watch` runs beside its role."""

    def __init__(self, kernel: Kernel, gate: PauseGate, run_folder: Path, own_folder: Path) -> None:
        self._kernel, self._gate = kernel, gate
        self._run_folder, self._own_folder = run_folder, own_folder
        self._places = [Place(folder) for folder in (run_folder, own_folder)]
        self._limits = kernel.config.peer.limits
        self._works = ROLES[kernel.who.role].policy in WORKS
        self._others = OthersUse(self._limits.others)
        self._on_battery = self._used = False
        self._measures = 0
        self.beyond = ""
        """Which limit cannot be kept; the peer leaves then."""

    async def watch(self) -> None:
        """Let the role rest and go on, until cancelled. Raises CannotHere once one of the folders is moved or
        removed."""
        limits, clock = self._limits, self._kernel.ports.clock
        measured = bool(limits.memory or limits.disk or limits.others < 1 or not limits.battery)
        due = -math.inf
        while True:
            if measured and (now := self._kernel.now()) >= due:
                due = now + MEASURE
                await asyncio.to_thread(self._measure, now)
            for place in self._places:
                place.check("peer", "the peer was")
            self.look()
            await clock.sleep(LOOK)

    def look(self) -> None:
        """Decide by the latest observations."""
        # `swarm pause` and people read the machine's clock, which may have been set since this peer began
        kernel, reason = self._kernel, self._reason(time.time()) if self._works else None
        self._gate.set(reason)
        if self.beyond and not kernel.stop.is_set():
            kernel.leave()

    def check(self) -> None:
        """Raise CannotHere when it left since a limit could not be kept."""
        if self.beyond:
            raise CannotHere(self.beyond)

    def _reason(self, now: float) -> PauseReason | None:
        """At `now` by the machine's clock."""
        limits = self._limits
        if (end := pause.until(self._run_folder, now)) is not None:
            return PauseReason(Phase.PAUSED, f"it is paused {pause.sentence(end, now)}")
        if not within(limits.hours, now):
            return PauseReason(Phase.LIMITED, f"its hours are {limits.hours}")
        if self._on_battery:
            return PauseReason(Phase.LIMITED, "its machine runs on a battery")
        if self._used:
            return PauseReason(
                Phase.LIMITED, f"other programs take more than {limits.others:.0%} of the processor"
            )
        return None

    def _measure(self, now: float) -> None:
        limits, roots = self._limits, {os.getpid()}
        if not limits.battery:
            self._on_battery = machine_use.on_battery()
        if limits.others < 1:
            # the other peers of this folder are no others: two of them would stop each other in turn
            self._used = self._others.take(
                now, machine_use.times(roots.union(peer_folder.running(self._run_folder).values()))
            )
        if limits.memory and (used := machine_use.memory(roots)) > limits.memory * GB:
            self.beyond = _beyond("its processes have", used, "RAM", "memory", limits.memory)
        sizes = limits.disk and self._measures % SIZES == 0
        if sizes and (held := machine_use.folder_size(self._own_folder)) > limits.disk * GB:
            self.beyond = _beyond(f"{self._own_folder} holds", held, "on the disk", "disk", limits.disk)
        self._measures += 1


def _beyond(what: str, size: int, where: str, name: str, most: float) -> str:
    return (
        f"this peer left: {what} {size / GB:.2f} GB {where}, and peer.limits.{name} is {most:g}; raise it, or"
        " take part in a smaller run"
    )
