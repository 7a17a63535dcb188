"""Whether a peer is paused: by its owner, or at a limit of its machine.

    a reason --set--> PauseGate <--waited-- the role, between groups (sampler), steps (learner) or versions

A paused peer keeps its place: its heartbeats say so, it fetches and serves releases, delivers finished
groups, and resumes at the swarm's version. The others neither wait for it nor send it groups. Not handled
here: the reasons (peers.runtime.limits.resource_limits).
"""

from __future__ import annotations

from typing import NamedTuple

from peers.runtime.kernel import Kernel
from swarm import events
from swarm.protocol import Phase


class PauseReason(NamedTuple):
    phase: Phase
    """One of `swarm.protocol.RESTING`."""
    text: str
    """For people: why, and until when."""


class PauseGate:
    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel
        self.reason: PauseReason | None = None
        """Why this peer is to rest; None: it is to work."""

    def set(self, reason: PauseReason | None) -> None:
        """Pause the role, or resume it, as soon as its current work is done."""
        if reason != self.reason:
            self.reason = reason
            self._kernel.move()

    async def waited(self, may: bool = True) -> bool:
        """Whether there was a reason to rest; it is over then, unless the role `may` not rest yet or is asked
        to stop."""
        kernel, before = self._kernel, self._kernel.status.phase
        if self.reason is None or kernel.stop.is_set() or not may:
            return self.reason is not None
        reported: PauseReason | None = None
        while (reason := self.reason) is not None and not kernel.stop.is_set():
            if reason != reported:
                reported, kernel.status.phase, kernel.status.credit = reason, reason.phase, 0
                kernel.emit(events.Noted, level="info", text=f"{kernel.who.name} rests: {reason.text}")
                kernel.beat_now()
            await kernel.changed(kernel.config.run.pace.beat)
        kernel.status.phase = before
        kernel.emit(events.Noted, level="info", text=f"{kernel.who.name} goes on after a rest")
        kernel.beat_now()
        return True
