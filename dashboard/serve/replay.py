"""Plays a journal: the SwarmState at any moment of it, or a stream of views at any speed.

    journal -> JournalReplay -> moment(at)              the state as it was
                      -> updates(at, speed)      views: the journal's clock runs `speed` times as fast as ours

Journal time is the Timeline's: the clock of the peer that wrote the journal, which never goes back; an event
with another peer's clock is placed where it arrived. Events before the writer's first own time stamp are
placed there. The journal is read once, and the state is saved every so many events; the state at a moment is
the nearest saved one before it, plus the events in between. A line that is no event is left out. Each stream
has its own state; requests for single moments share the last few. A stream that reaches the journal's end
stays there, and one without `at` begins there: a finished run opens as a whole. Not handled here: journals
that still grow (`swarm status` and the live dashboard follow those).
"""

from __future__ import annotations

import asyncio
import copy
from array import array
from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from dashboard.diagnosis import follow
from dashboard.fold.recent import Recent
from dashboard.fold.snapshot import dump, load
from dashboard.fold.state import SwarmState
from dashboard.serve.feed import PAUSE, PULSE
from dashboard.serve.source import Moment
from dashboard.serve.state_view import view_of
from dashboard.text import number
from dashboard.views import Span
from swarm.events import AnyEvent, Event
from swarm.journal import Damage, from_line, parts
from swarm.limits import remember
from swarm.settings.config import Run
from swarm.storage.durable import opened

STRIDE = 4096
"""Least events between two saved states: as many as are folded in a tenth of a second."""

STATES = 256
"""Most saved states; a longer journal has them further apart."""

MOMENTS = 4
"""States cached for requests of single moments: a dashboard requests several endpoints for one moment."""

READERS = 8
"""Most streams: each has its own state."""

FASTEST = 1000.0
"""Highest speed in journal seconds per second: faster than this a run is over before a person sees
anything."""

FARTHEST = 1 << 44
"""Most bytes of one file of a journal here."""

_json = msgspec.json.Encoder()


class StateAt(NamedTuple):
    """The state after so many events."""

    packed: bytes
    recent: Recent


class JournalFile:
    """The events of a journal on the disk, in all its files; only the offsets of their lines are in memory.
    An incomplete last line is left out."""

    def __init__(self, path: Path) -> None:
        self._files = [file for _, file in parts(path) if file.exists()]
        self._lines = array("Q")
        """Where each line begins: the place of its file, and the byte in it."""
        self._strange: dict[int, str] = {}
        """Lines that were read and are no events, and why."""
        for place, file in enumerate(self._files):
            with opened(file) as lines:
                at = 0
                for line in lines:
                    if line.endswith(b"\n"):
                        self._lines.append(place * FARTHEST + at)
                    at += len(line)

    def __len__(self) -> int:
        return len(self._lines)

    @property
    def damage(self) -> Damage | None:
        """Of the lines read so far."""
        if not self._strange:
            return None
        first = min(self._strange)
        place = self._lines[first] // FARTHEST
        line = first - bisect_left(self._lines, place * FARTHEST) + 1
        return Damage(len(self._strange), self._files[place], line, self._strange[first])

    def between(self, start: int, end: int) -> Iterator[AnyEvent | None]:
        """The events of some lines; None for a line that is no event."""
        while start < end:
            place, at = divmod(self._lines[start], FARTHEST)
            until = min(end, bisect_left(self._lines, (place + 1) * FARTHEST))
            with open(self._files[place], "rb") as lines:
                lines.seek(at)
                for number in range(start, until):
                    try:
                        event = from_line(lines.readline())
                    except msgspec.DecodeError as error:
                        self._strange[number] = str(error)
                        event = None
                    yield event
            start = until


class EventsInMemory:
    """A journal's events in memory."""

    damage = None

    def __init__(self, events: Sequence[Event]) -> None:
        self._events = events

    def __len__(self) -> int:
        return len(self._events)

    def between(self, start: int, end: int) -> Iterator[Event]:
        return iter(self._events[start:end])


class JournalIndex:
    """A journal indexed by time: the number of events at a moment, and the SwarmState then."""

    def __init__(self, events: JournalFile | EventsInMemory, run: Run | None) -> None:
        self._events, self._run = events, run
        self.stride = max(STRIDE, len(events) // STATES)
        self.times = array("d")
        """Each event's journal time; never falls."""
        self._kept: list[StateAt] = []
        self._read()
        self.damage = events.damage
        """Lines that are no events."""

    def place(self, at: float) -> int:
        """Number of events up to a time."""
        return bisect_right(self.times, at)

    def quiet(self, place: int, now: float) -> float:
        return max(now - self.times[place - 1], 0.0) if place else 0.0

    def state(self, place: int) -> SwarmState:
        """A new state, after the first `place` events."""
        nearest = min(place // self.stride, len(self._kept) - 1)
        if nearest < 0:
            return SwarmState(self._run)
        kept = self._kept[nearest]
        state = load(kept.packed, self._run)
        state.recent = copy.deepcopy(kept.recent)
        self.fold(state, nearest * self.stride, place)
        return state

    def fold(self, state: SwarmState, start: int, end: int) -> None:
        for event in self._events.between(start, end):
            if event is not None:
                follow(state, event)

    def _read(self) -> None:
        """Fold the journal once, to record the time of each event and to save states."""
        state = SwarmState(self._run)
        early = 0
        for place, event in enumerate(self._events.between(0, len(self._events))):
            if place % self.stride == 0:
                self._kept.append(StateAt(dump(state), copy.deepcopy(state.recent)))
            if event is not None:
                follow(state, event)
            if state.timeline.keeper is None:
                early = place + 1
            self.times.append(state.last)
        if 0 < early < len(self.times):
            self.times[:early] = array("d", [self.times[early]] * early)


class JournalReplay:
    live = False

    def __init__(self, events: Sequence[Event] | Path, run: Run | None = None) -> None:
        self._track = JournalIndex(
            JournalFile(events) if isinstance(events, Path) else EventsInMemory(events), run
        )
        times, self.damage = self._track.times, self._track.damage
        self.span = Span(first=times[0], last=times[-1]) if times else Span(first=0.0, last=0.0)
        self._moments: OrderedDict[int, SwarmState] = OrderedDict()
        """Number of events folded -> state."""
        self._closed = False
        self.readers = 0

    @property
    def room(self) -> int:
        return max(0, READERS - self.readers)

    def moment(self, at: float | None = None) -> Moment:
        """The state after all events up to `at`, by default up to the end."""
        now = self._within(at, self.span.last)
        place = self._track.place(now)
        if (state := self._moments.get(place)) is None:
            state = self._track.state(place)
        remember(self._moments, place, state, MOMENTS)
        return Moment(state, now, self._track.quiet(place, now), self.span)

    async def updates(self, at: float | None = None, speed: float = 1.0) -> AsyncIterator[str]:
        loop = asyncio.get_running_loop()
        begin, start = self._within(at, self.span.last), loop.time()
        speed = number(speed, 0.0, FASTEST)
        reader = _ReplayReader(self._track, self.span, begin)
        yield reader.view(begin)
        sent_at = start
        while not self._closed:
            await asyncio.sleep(PAUSE - loop.time() % PAUSE)
            now = min(begin + (loop.time() - start) * speed, self.span.last)
            if reader.move(now) or loop.time() - sent_at >= PULSE:
                sent_at = loop.time()
                yield reader.view(now)

    def open(self) -> None:
        self._closed = False

    def close(self) -> None:
        """End all streams within a quarter of a second."""
        self._closed = True

    def _within(self, at: float | None, otherwise: float) -> float:
        return otherwise if at is None else number(at, self.span.first, self.span.last)


class _ReplayReader:
    """A position in the journal, with its own SwarmState."""

    def __init__(self, track: JournalIndex, span: Span, at: float) -> None:
        self._track, self._span = track, span
        self._place = track.place(at)
        self._state = track.state(self._place)
        self._seen = 0
        """Revision of the last view."""

    def move(self, now: float) -> bool:
        """Go to journal time `now`. True when there were events on the way."""
        place, before = self._track.place(now), self._place
        if place - before > self._track.stride:
            self._state = self._track.state(place)
        else:
            self._track.fold(self._state, before, place)
        self._place = place
        return place > before

    def view(self, now: float) -> str:
        view = view_of(self._state, now, self._seen, self._track.quiet(self._place, now), self._span)
        self._seen = self._state.revision
        return _json.encode(view).decode()
