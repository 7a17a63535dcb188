"""The feed: folds a bus's events into a SwarmState and sends each reader the changes since its last update.

A Feed is a sink of a Bus. A reader is a revision number: at each tick it gets everything that changed since
that revision as one update; readers with the same revision share the text. So no queue can grow: a slow
reader gets fewer and larger updates, and a full view when it is far behind. Ticks are aligned, four a second,
fewer while much changes. Everything runs in one event loop. Not handled here: transport
(dashboard.serve.app).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable

import msgspec

from dashboard.diagnosis import follow
from dashboard.fold.state import SwarmState
from dashboard.serve.source import Moment
from dashboard.serve.state_view import view_of
from swarm.events import Event, Heard
from swarm.types import PeerId

PAUSE = 0.25
"""Seconds between two updates of one reader: as fast as a person reads changing figures."""

MANY, SLOWER = 200, 4
"""After an update of more than MANY rows the next one comes SLOWER ticks later: rendering takes the browser
longer than that wait."""

CALM = 1.0
"""Seconds between two updates of the flows: they are averages over several seconds, and large."""

PULSE = 2.0
"""Seconds after which a reader without news gets an update that says how long it has been quiet; the
dashboard warns after 10."""

BEHIND = 10.0
"""Seconds without reading after which a reader gets a full view, which all such readers share."""

READERS = 64
"""Most open streams; a browser holds one for each of its windows that is seen. Beyond them the dashboard
refuses with a message, so that the peer does not run out of memory."""

_json = msgspec.json.Encoder()


class Feed:
    live = True

    def __init__(
        self, state: SwarmState, clock: Callable[[], float] = time.time, me: PeerId | None = None
    ) -> None:
        """`me`: the peer that serves the dashboard, whose own events and heartbeats do not count as
        received."""
        self._me = me
        self.state = state
        self.clock = clock
        self.readers = 0
        self._last_event = clock()
        self._closed = False
        self._tick = -1
        self._texts: dict[tuple[int, bool], tuple[str, int, int]] = {}
        """This tick's views: (reader's revision, whether it gets flows) -> (view as JSON, ticks until the
        next, the view's own revision: more may be folded in before another reader gets it)."""

    def __call__(self, event: Event) -> None:
        follow(self.state, event)
        if (event.subject if isinstance(event, Heard) else event.peer) != self._me:
            self._last_event = self.clock()

    @property
    def room(self) -> int:
        return max(0, READERS - self.readers)

    def moment(self, at: float | None = None) -> Moment:
        now = self.clock()
        return Moment(self.state, now, max(now - self._last_event, 0.0), None)

    async def updates(self, at: float | None = None, speed: float = 1.0) -> AsyncIterator[str]:
        loop = asyncio.get_running_loop()
        seen, sent_at, drawn = 0, -PULSE, 0
        while not self._closed:
            now, wait = loop.time(), 1
            if self.state.revision != seen or now - sent_at >= PULSE:
                tick = int(now / PAUSE)
                flows = (tick - drawn) * PAUSE >= CALM
                text, wait, seen = self._text(0 if now - sent_at > BEHIND else seen, flows, tick)
                sent_at, drawn = now, tick if flows else drawn
                yield text
            await asyncio.sleep(PAUSE * wait - loop.time() % PAUSE)

    def open(self) -> None:
        self._closed = False

    def close(self) -> None:
        """End all streams at their next tick."""
        self._closed = True

    def statistics(self) -> dict[str, int]:
        return {"readers": self.readers, "revision": self.state.revision, "peers": len(self.state.peers)}

    def _text(self, since: int, flows: bool, tick: int) -> tuple[str, int, int]:
        """The view after revision `since`, made once a tick: see `_texts`."""
        if tick != self._tick:
            self._tick, self._texts = tick, {}
        if (since, flows) not in self._texts:
            state, now, quiet, _ = self.moment()
            view = view_of(state, now, since, quiet, flows=flows)
            wait = SLOWER if not view.full and len(view.peers) > MANY else 1
            self._texts[since, flows] = _json.encode(view).decode(), wait, view.revision
        return self._texts[since, flows]
