"""Bundles of events: what a peer's own events are sent to others in.

    bus -- own events that the page needs --> EventBundles -- sealed, a few times a second --> topic `event`

Invariant: of events that wait, the oldest give way, and are in the journal alone. Not handled here: what
becomes of those that others send (peers.runtime.host).
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING

from swarm import events
from swarm.frames import wire
from swarm.limits import EVENT_LIMIT
from swarm.protocol import Topic

if TYPE_CHECKING:
    from peers.runtime.host import Host

EVERY = 0.25
"""Seconds between two bundles of events: a page shows four updates a second."""

KEPT = 256
"""Own events that wait for the next bundle."""

ENVELOPE = 600
"""Bytes of a sealed bundle besides its events: envelope, signature and membership."""


class EventBundles:
    """One peer's."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._waiting: deque[events.Event] = deque(maxlen=KEPT)
        self._collected = asyncio.Event()

    def collect(self, event: events.Event) -> None:
        """A sink of the peer's bus."""
        if event.peer == self._host.ports.me and isinstance(event, events.GOSSIPED):
            self._waiting.append(event)
            self._collected.set()

    async def send_forever(self) -> None:
        host, every = self._host, max(EVERY, self._host.config.run.pace.beat / 4)
        while True:
            await self._collected.wait()
            await host.ports.clock.sleep(every * host.slower)
            self._collected.clear()
            await self.send()

    async def send(self) -> None:
        """Send all that wait."""
        host = self._host
        while self._waiting:
            try:
                sealed = host.seal(self._next(), EVENT_LIMIT)
            except wire.WireError as error:
                host.emit(events.Rejected, sender=host.ports.me, kind=Topic.EVENT, reason=str(error))
                continue
            await host.ports.gossip.publish(host.topic(Topic.EVENT), sealed)

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
