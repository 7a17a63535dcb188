"""Slots of incoming mail streams: the limits, and which stream is closed when a limit is reached.

    arrive --> idle --announce--> reading --begin--> calling --answer--> answering --rest--> idle
    leave, from anywhere

A stranger must not keep others out at no cost to itself. An open stream, a header and a part of a message
each hold a slot: where there are too many, the peer with the most of them loses its oldest, and peers that
have proven themselves (`regular`) lose theirs last. A complete message needs a slot of its service, and half
of those are reserved for regular peers. A running handler is never interrupted. Not handled here: reading,
deadlines, how a stream is closed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum

from swarm.limits import FRAME_LIMIT
from swarm.protocol import SERVICES, ServiceRow
from swarm.types import PeerId

STREAMS_OF_ONE, STREAMS = 32, 256
"""Open streams of one peer and of all: a learner with a hundred samplers, and room for as many strangers;
each costs a file descriptor and a small buffer."""

CALLS_OF_ONE = 16
"""Handlers that run at once for one peer: twice as many as an honest one has under way to one service."""

BYTES_OF_ONE, BYTES = 32 << 20, 128 << 20
"""Bytes of messages that arrive or are being handled, of one peer and in all: one peer may send eight of the
largest at once, one on each of its streams to one service."""

START, RATE = 5.0, 64 << 10
"""Seconds that every message has to arrive, and bytes a second beyond them: enough for a lost packet or two
and a line of half a Mbit/s."""


OTHER = ServiceRow(16, FRAME_LIMIT, "", "", "")
"""Limits of a service that is not in SERVICES: a test's, or another program's."""


class StreamPhase(IntEnum):
    """The state of a stream; a peer's streams are closed in this order."""

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
    """Time at which its phase began."""
    phase: StreamPhase = StreamPhase.IDLE
    size: int = 0
    """Bytes of the message that arrives or is handled."""
    reserved: bool = False
    """Its call does not count against the half that strangers may use."""


class StreamSlots:
    """The open streams. `now` is in seconds of any clock. A stream that was closed for another one has no
    seat: its calls are refused."""

    def __init__(self, regular: Callable[[PeerId], bool] = lambda peer: False) -> None:
        self.regular = regular
        """Whether a peer is a member, or has delivered something useful."""
        self._seats: dict[StreamSeat, None] = {}
        self._streams: Counter[PeerId] = Counter()
        self._bytes: Counter[PeerId] = Counter()
        self._held = 0
        """Sum of the bytes that all peers hold."""
        self._calls: Counter[PeerId] = Counter()
        self._running: Counter[str] = Counter()
        self._strange: Counter[str] = Counter()
        """Calls that run for a service, for peers that are not regular."""

    def statistics(self) -> dict[str, int]:
        return {"streams_in": len(self._seats), "calls_in": self._calls.total(), "bytes_in": self._held}

    def arrive(self, peer: PeerId, service: str, now: float) -> tuple[StreamSeat | None, StreamSeat | None]:
        """Open a stream -> its seat, and the seat whose stream must be closed for it. No seat when all others
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
        """Take a header -> seats whose streams must be closed to make room for its message; None when there
        is no room."""
        gone: list[StreamSeat] = []
        if seat not in self._seats or (held := self._bytes.get(seat.peer, 0) + size) > BYTES_OF_ONE:
            return None
        self._bytes[seat.peer] = held
        self._held += size
        seat.phase, seat.size, seat.since = StreamPhase.READING, size, now
        freed = Counter[PeerId]()
        while self._held - freed.total() > BYTES:
            reading = [
                other
                for other in self._seats
                if other.phase is StreamPhase.READING and other.size and other not in gone
            ]
            standing = {one: (self.regular(one), freed[one] - held) for one, held in self._bytes.items()}
            weakest = min(reading, key=lambda other: (standing[other.peer], other.since))
            if weakest.peer == seat.peer:
                self._release(seat)
                return None
            freed[weakest.peer] += weakest.size
            gone.append(weakest)
        for other in gone:
            self.leave(other)
        return gone

    def begin(self, seat: StreamSeat, now: float) -> bool:
        """Whether the handler of a complete message may run; if not, its sender gets Busy."""
        service, reserved = _row(seat.service), self.regular(seat.peer)
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
        """Free the slots of a call that ended or may not run: only the answer is left to send."""
        self._end(seat)
        self._release(seat)
        seat.phase, seat.since = StreamPhase.ANSWERING, now

    def rest(self, seat: StreamSeat, now: float) -> None:
        """The answer is sent: the stream is idle again."""
        seat.phase, seat.since = StreamPhase.IDLE, now

    def leave(self, seat: StreamSeat) -> None:
        """Give up a seat whose stream is closed; a second call changes nothing."""
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
    """Limit of a message to a service, bytes."""
    return _row(service).largest


def _row(service: str) -> ServiceRow:
    return SERVICES.get(service.split("/")[0], OTHER)  # held/blobs is the service `held` of a store


def deadline(size: int) -> float:
    """Seconds from a message's header to its last byte."""
    return START + size / RATE


def _less(counter: Counter[PeerId], key: PeerId, by: int) -> None:
    if (left := counter[key] - by) > 0:
        counter[key] = left
    else:
        counter.pop(key, None)  # Counter's own `del` is three calls more
