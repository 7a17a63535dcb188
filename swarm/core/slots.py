"""Whose mail is served when many ask at once: a table of open streams, and who gives way.

    arrive --> idle --announce--> reading --begin--> calling --answer--> answering --rest--> idle
    leave, from anywhere

What costs a stranger nothing keeps nobody out. A stream that is open, four bytes of a header and half a
message hold places that others may have: where there are too many, the peer with the most of them loses its
oldest, and peers that have proven themselves (`regular`) are the last to. A message that came whole has a
place of its service's own, and half of those are kept for regular peers. What runs in a handler is never
broken off. Not handled here: reading, deadlines, how a stream is closed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

from swarm.types import PeerId
from swarm.wire import FRAME_LIMIT

STREAMS_OF_ONE, STREAMS = 32, 256
"""A learner with a hundred samplers, and room for as many strangers; each costs a file and a small buffer."""

CALLS_OF_ONE = 16
"""Handlers that run at once for one peer: twice what an honest one has under way to one service."""

BYTES_OF_ONE, BYTES = 32 << 20, 128 << 20
"""Of messages that come or are being handled: eight of the largest from one peer, which is what it has
streams for to one service."""

QUESTION = 8 << 10
"""Bytes of a request that asks for something: a digest or a name, in a private run inside a frame with a
membership."""

START, RATE = 5.0, 64 << 10
"""Seconds that every message has to come, and bytes a second beyond: a lost packet or two, and a line of half
a Mbit/s."""


class Service(NamedTuple):
    calls: int
    """Handlers that run at once."""
    largest: int
    """Bytes of one message."""


SERVICES = {
    # rewards may take seconds each, and a learner has room for as many by default
    "groups": Service(128, FRAME_LIMIT),
    "blobs": Service(64, QUESTION),
    "states": Service(64, QUESTION),
    "spec": Service(16, QUESTION),
    "newest": Service(16, QUESTION),
    "release": Service(16, QUESTION),
    "state": Service(16, QUESTION),
    "history": Service(16, QUESTION),
}
OTHER = Service(16, FRAME_LIMIT)


class StreamPhase(IntEnum):
    """What a stream is doing, in the order in which a peer's streams give way."""

    IDLE = 0
    READING = 1
    ANSWERING = 2
    CALLING = 3


@dataclass(eq=False, slots=True)
class StreamSeat:
    """One open stream of a peer."""

    peer: PeerId
    service: str
    since: float
    """When its phase began."""
    phase: StreamPhase = StreamPhase.IDLE
    size: int = 0
    """Bytes of the message that comes or is being handled."""
    reserved: bool = False
    """Its call has a place that strangers cannot have."""


class StreamSlots:
    """`now` is in seconds of any clock. What a stream that gave way still says is refused: it may have been
    on its way."""

    def __init__(self, regular: Callable[[PeerId], bool] = lambda peer: False) -> None:
        self.regular = regular
        """Whether a peer is a member, or delivered what was of use."""
        self._seats: dict[StreamSeat, None] = {}
        self._streams: Counter[PeerId] = Counter()
        self._bytes: Counter[PeerId] = Counter()
        self._held = 0
        """Sum of these."""
        self._calls: Counter[PeerId] = Counter()
        self._running: Counter[str] = Counter()
        self._strange: Counter[str] = Counter()
        """Calls that run for a service, for peers that are not regular."""

    def statistics(self) -> dict[str, int]:
        return {"streams_in": len(self._seats), "calls_in": self._calls.total(), "bytes_in": self._held}

    def arrive(self, peer: PeerId, service: str, now: float) -> tuple[StreamSeat | None, StreamSeat | None]:
        """A stream was opened -> its seat, and the one that must be closed for it. No seat when all others
        are in calls."""
        gone = None
        if self._streams[peer] >= STREAMS_OF_ONE or len(self._seats) >= STREAMS:
            own = self._streams[peer] >= STREAMS_OF_ONE
            yielding = [
                seat
                for seat in self._seats
                if seat.phase is not StreamPhase.CALLING and (not own or seat.peer == peer)
            ]
            if not yielding:
                return None, None
            standing = {one: (self.regular(one), -streams) for one, streams in self._streams.items()}
            gone = min(yielding, key=lambda seat: (standing[seat.peer], seat.phase, seat.since))
            self.leave(gone)
        seat = StreamSeat(peer, service, now)
        self._seats[seat] = None
        self._streams[peer] += 1
        return seat, gone

    def announce(self, seat: StreamSeat, size: int, now: float) -> list[StreamSeat] | None:
        """A header came -> whose streams must be closed for its bytes; None when they cannot be had."""
        gone: list[StreamSeat] = []
        if seat not in self._seats or (held := self._bytes.get(seat.peer, 0) + size) > BYTES_OF_ONE:
            return None
        self._bytes[seat.peer] = held
        self._held += size
        seat.phase, seat.size, seat.since = StreamPhase.READING, size, now
        while self._held > BYTES:
            reading = [other for other in self._seats if other.phase is StreamPhase.READING and other.size]
            standing = {one: (self.regular(one), -held) for one, held in self._bytes.items()}
            weakest = min(reading, key=lambda other: (standing[other.peer], other.since), default=seat)
            if weakest.peer == seat.peer:
                self._release(seat)
                return None
            self.leave(weakest)
            gone.append(weakest)
        return gone

    def begin(self, seat: StreamSeat, now: float) -> bool:
        """A message is whole: may its handler run? Its sender is told to come later if not."""
        service, reserved = SERVICES.get(seat.service, OTHER), self.regular(seat.peer)
        running, calls = self._running[seat.service], self._calls.get(seat.peer, 0)
        if running >= service.calls or calls >= CALLS_OF_ONE or seat not in self._seats:
            return False
        if not reserved:
            if self._strange[seat.service] >= service.calls // 2:
                return False
            self._strange[seat.service] += 1
        seat.phase, seat.since, seat.reserved = StreamPhase.CALLING, now, reserved
        self._running[seat.service], self._calls[seat.peer] = running + 1, calls + 1
        return True

    def answer(self, seat: StreamSeat, now: float) -> None:
        """Its handler has ended, or may not run: what is left is to tell the sender."""
        self._end(seat)
        self._release(seat)
        seat.phase, seat.since = StreamPhase.ANSWERING, now

    def rest(self, seat: StreamSeat, now: float) -> None:
        seat.phase, seat.since = StreamPhase.IDLE, now

    def leave(self, seat: StreamSeat) -> None:
        """Its stream is closed; a second time changes nothing."""
        if seat in self._seats:
            del self._seats[seat]
            self._end(seat)
            self._release(seat)
            _less(self._streams, seat.peer, 1)

    def _end(self, seat: StreamSeat) -> None:
        if seat.phase is StreamPhase.CALLING:
            _less(self._calls, seat.peer, 1)
            self._running[seat.service] -= 1
            if not seat.reserved:
                self._strange[seat.service] -= 1

    def _release(self, seat: StreamSeat) -> None:
        if seat.size:
            _less(self._bytes, seat.peer, seat.size)
            self._held -= seat.size
            seat.size = 0


def largest(service: str) -> int:
    """Bytes of a message to a service."""
    return SERVICES.get(service, OTHER).largest


def deadline(size: int) -> float:
    """Seconds from a message's header to its last byte."""
    return START + size / RATE


def _less(counter: Counter[PeerId], key: PeerId, by: int) -> None:
    if (left := counter[key] - by) > 0:
        counter[key] = left
    else:
        counter.pop(key, None)  # Counter's own `del` is three calls more
