"""Bundles of events: the events of each peer that others receive.

    bus -- own events for dashboards --> EventBundles -- sealed, a few times a second --> topic `event`
    topic `event` -- events that their sender may report --> bus

Invariant: when too many events wait, the oldest are dropped from the bundle, and remain in the journal alone.
Not handled here: whether a member tells the truth.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping

from peers.runtime.heartbeats import Heartbeats
from peers.runtime.kernel import Kernel
from swarm import events
from swarm.frames import wire
from swarm.limits import EVENT_LIMIT
from swarm.protocol import Role, Topic

EVERY = 0.25
"""Seconds between two bundles of events: a dashboard shows four updates a second."""

KEPT = 256
"""Own events that wait for the next bundle."""

ENVELOPE = 600
"""Bytes of a sealed bundle besides its events: envelope, signature and membership."""

REPORTERS: Mapping[type[events.Event], tuple[Role, ...]] = {
    events.Counted: (Role.LEARNER,),
    events.Shown: (Role.LEARNER,),
    events.Moved: (Role.LEARNER,),
    events.Averaged: (Role.LEARNER,),
    events.RoundBroke: (Role.LEARNER,),
    events.Unreached: (Role.LEARNER,),
    events.Trained: (Role.LEARNER,),
    events.Snapped: (Role.LEARNER,),
    events.CaughtUp: (Role.LEARNER,),
    events.Forked: (Role.LEARNER,),
    events.Audited: (Role.LEARNER, Role.AUDITOR),
    events.LeftOut: (Role.LEARNER,),
    events.Evaluated: (Role.EVALUATOR,),
}
"""Event -> the roles whose members alone may report it; any peer may report any other event about itself."""


class EventBundles:
    """One peer's."""

    def __init__(self, kernel: Kernel, beats: Heartbeats) -> None:
        self._kernel, self._beats = kernel, beats
        self._waiting: deque[events.Event] = deque(maxlen=KEPT)
        self._collected = asyncio.Event()

    def collect(self, event: events.Event) -> None:
        """A sink of the peer's bus."""
        if event.peer == self._kernel.ports.me and isinstance(event, events.GOSSIPED):
            self._waiting.append(event)
            self._collected.set()

    async def run(self) -> None:
        kernel, every = self._kernel, max(EVERY, self._kernel.config.run.pace.beat / 4)
        while True:
            await self._collected.wait()
            await kernel.ports.clock.sleep(every * self._beats.slower)
            self._collected.clear()
            await self.send()

    async def send(self) -> None:
        """Send all that wait."""
        kernel = self._kernel
        while self._waiting:
            try:
                sealed = kernel.seal(self._next(), EVENT_LIMIT)
            except wire.WireError as error:
                kernel.emit(events.Rejected, sender=kernel.ports.me, kind=Topic.EVENT, reason=str(error))
                continue
            await kernel.ports.gossip.publish(kernel.topic(Topic.EVENT), sealed)

    def handlers(self) -> dict[Topic, Callable[[bytes], object]]:
        return {Topic.EVENT: self.receive}

    def receive(self, data: bytes) -> None:
        """Take a sealed bundle. Raises WireError where it is none, or has an event that its sender may not
        report."""
        kernel = self._kernel
        opened, bundle = kernel.read(data, EVENT_LIMIT, events.Bundle)
        if (why := kernel.trust.revocations.why(opened.sender, opened.membership)) is not None:
            raise wire.WireError(f"events of {opened.sender}: {why}")
        for event in bundle:
            if event.peer != opened.sender:
                raise wire.WireError(f"event {type(event).__name__} that {opened.sender} may not report")
            if (why := self._unreported(opened, event)) is not None:
                raise wire.WireError(f"{type(event).__name__.lower()}: {why}")
            if event.peer != kernel.ports.me:
                kernel.bus.emit(event)
        kernel.move()

    def _unreported(self, opened: wire.Opened, event: events.Event) -> str | None:
        """Why a frame's sender may not report an event, or None."""
        if isinstance(event, events.Started):
            return self._kernel.distrust(opened, event.role)
        roles = reporters(event)
        if not roles or any(self._kernel.invited(opened, role) for role in roles):
            return None
        return self._kernel.distrust(opened, roles[0])

    def _next(self) -> list[events.Event]:
        """As many as one message takes, at least one."""
        bundle: list[events.Event] = []
        size = 0
        while self._waiting:
            size += len(wire.encode(self._waiting[0]))
            if bundle and size >= EVENT_LIMIT.sealed - ENVELOPE:
                break
            bundle.append(self._waiting.popleft())
        return bundle


def reporters(event: events.Event) -> tuple[Role, ...]:
    """The roles of which the sender of an event has to be a member; none: any peer. Only learners suspend
    samplers."""
    if isinstance(event, events.Audited) and event.until > 0:
        return (Role.LEARNER,)
    return REPORTERS.get(type(event), ())
