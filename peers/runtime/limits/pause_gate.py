"""Whether a peer rests: its owner paused it, or it is at a limit of its machine.

    a reason --set--> Rest <--taken-- the role, between two groups (sampler), steps (learner) or versions

A peer that rests keeps its place: its heartbeats say that it rests, it takes and serves releases, delivers
what is sampled, and goes on where the swarm is. The others neither wait for it nor send it groups. Not
handled here: what the reasons are (peers.runtime.limits.resource_limits).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from swarm import events
from swarm.protocol import Phase

if TYPE_CHECKING:
    from peers.runtime.host import Host


class Reason(NamedTuple):
    phase: Phase
    """One of `swarm.protocol.RESTING`."""
    text: str
    """For people: why, and until when."""


class Rest:
    def __init__(self, host: Host) -> None:
        self._host = host
        self.reason: Reason | None = None
        """Why this peer is to rest; None: it is to work."""

    def set(self, reason: Reason | None) -> None:
        """The role rests, or goes on, as soon as what it does is done."""
        if reason != self.reason:
            self.reason = reason
            self._host.move()

    async def taken(self, may: bool = True) -> bool:
        """Whether there was a reason to rest; it is over then, unless the role `may` not rest yet or is asked
        to stop."""
        host, before = self._host, self._host.status.phase
        if self.reason is None or host.stop.is_set() or not may:
            return self.reason is not None
        told: Reason | None = None
        while (reason := self.reason) is not None and not host.stop.is_set():
            if reason != told:
                told, host.status.phase, host.status.credit = reason, reason.phase, 0
                host.emit(events.Noted, level="info", text=f"{host.who.name} rests: {reason.text}")
                host.beat_now()
            await host.changed(host.config.run.pace.beat)
        host.status.phase = before
        host.emit(events.Noted, level="info", text=f"{host.who.name} goes on after a rest")
        host.beat_now()
        return True
