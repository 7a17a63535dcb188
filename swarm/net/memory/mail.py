"""Mail in one process: calls that cross the links of a MemoryNetwork, their answers, and their ends.

    send -> PendingCall -- MemoryNetwork.carry --> MemoryPeer.answer -> handler -> reply -- carry --> sender
              Quiet: the link is cut, or nothing came for too long -> Unreachable

Invariants: a call is settled once, whoever crashes meanwhile; what a caller does not wait for any more takes
no share of a line. Not handled here: how long a message travels
(swarm.net.memory.network), gossip, the board.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from swarm.limits import FRAME_LIMIT, REASON_LIMIT, cut
from swarm.net.ports import NOTHING_CAME, Busy, Gate, Handler, NetError, Refused, Silent, Unreachable
from swarm.net.turns import AnswerTurns, no_turn
from swarm.types import PeerId

if TYPE_CHECKING:
    from swarm.net.memory.network import MemoryNetwork, Passage

CONCURRENT = 64
"""Calls that a peer answers at once: p2pd manages 64 streams to one peer, 256 fail."""


class Dials:
    """Peers that cannot be dialled: whom such a one has called itself can call it over the same
    connection."""

    def __init__(self) -> None:
        self._of: dict[PeerId, dict[PeerId, None]] = {}

    def add(self, peer: PeerId) -> None:
        self._of[peer] = {}

    def reaches(self, sender: PeerId, receiver: PeerId) -> bool:
        """False when there is no way from `sender` to `receiver`."""
        return receiver not in self._of or sender in self._of[receiver]

    def connect(self, sender: PeerId, receiver: PeerId) -> None:
        """A message of `sender` has arrived, so there is a connection."""
        if sender in self._of:
            self._of[sender][receiver] = None

    def crash(self, peer: PeerId) -> None:
        self._of.pop(peer, None)
        for called in self._of.values():
            called.pop(peer, None)


Weigh = Callable[[str, bytes, bool], int]
"""(service, message, whether it is an answer) -> bytes that cross the link."""


def as_it_is(service: str, message: bytes, is_answer: bool) -> int:
    return len(message)


class Coming:
    """Answers of one service that are on their way from one peer to another."""

    def __init__(self) -> None:
        self._last = 0.0
        self._under: list[Passage] = []

    def add(self, answer: Passage) -> None:
        self.until()
        self._under.append(answer)

    def until(self) -> float:
        """Loop seconds until when their bytes arrive, or arrived; infinite while nobody knows."""
        self._last = max([self._last, *(one.until for one in self._under if one.until < math.inf)])
        self._under = [one for one in self._under if one.until == math.inf]
        return math.inf if self._under else self._last


class MemoryPeer:
    """One life of a peer: what it answers, and the answers under way."""

    def __init__(self, network: MemoryNetwork, peer: PeerId) -> None:
        self.network = network
        self.peer = peer
        self.services: dict[str, tuple[Handler, AnswerTurns | None]] = {}
        self.answering: dict[asyncio.Task[None], bool] = {}
        """Task -> whether it counts against CONCURRENT; calls with turns are bounded by these."""
        self.gate: Gate = lambda peer, service: None
        self.busy_until = 0.0
        """Loop seconds until which it takes no calls."""
        self.coming: dict[tuple[PeerId, str], Coming] = {}
        """(peer, service) -> its answers."""

    def is_busy(self) -> bool:
        now = asyncio.get_running_loop().time()
        return sum(self.answering.values()) >= CONCURRENT or now < self.busy_until

    def answer(self, call: PendingCall, handler: Handler, turns: AnswerTurns | None) -> None:
        task = self.network.tasks.create_task(
            call.handle(handler, turns), name=f"{self.peer} answers {call.service}"
        )
        self.answering[task] = turns is None
        task.add_done_callback(self._answered)

    def _answered(self, task: asyncio.Task[None]) -> None:
        del self.answering[task]


class PendingCall:
    """One mail and its way back."""

    __slots__ = ("answer", "is_watched", "message", "network", "passage", "sender", "service", "to")

    def __init__(
        self,
        network: MemoryNetwork,
        sender: PeerId,
        to: PeerId,
        service: str,
        message: bytes,
        is_watched: bool,
    ) -> None:
        """`is_watched`: its caller asks how long nothing has come."""
        self.network = network
        self.sender = sender
        self.to = to
        self.service = service
        self.message = message
        self.is_watched = is_watched
        self.answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self.passage: Passage | None = None
        """Of the message, then of its answer."""

    def start(self) -> None:
        if not self.network.dials.reaches(self.sender, self.to):
            self._fail(f"{self.to} cannot be dialled, and has not dialled")
        elif self.network.links.open(self.sender, self.to):
            size = self.network.weigh(self.service, self.message, False)
            self.passage = self.network.carry(self.sender, self.to, size, self.land, self._lost)
        else:
            self._fail(f"no way to {self.to}: the link is cut")

    def _fail(self, why: str) -> None:
        """The time of a message later."""
        seconds = self.network.links.seconds(self.sender, self.to, 0)
        asyncio.get_running_loop().call_later(seconds, self.settle, Unreachable(why))

    def land(self) -> None:
        host = self.network.hosts.get(self.to)
        if host is not None and not self.answer.done():  # a dial ends with its call, or with its peer
            self.network.dials.connect(self.sender, self.to)
        served = host.services.get(self.service) if host is not None else None
        if host is None or served is None:
            what = "is not there" if host is None else f"does not serve {self.service!r}"
            self.reply(Unreachable(f"{self.to} {what}"))
        elif (why := host.gate(self.sender, self.service)) is not None:
            self.reply(Refused(why))
        elif served[1] is None and host.is_busy():
            self.reply(Busy(f"busy with {CONCURRENT} calls: try later"))
        else:
            host.answer(self, *served)

    async def handle(self, handler: Handler, turns: AnswerTurns | None) -> None:
        end = no_turn
        try:
            end = await turns.take(self.sender) if turns is not None else no_turn
            outcome: bytes | NetError = await handler(self.sender, self.message)
        except Refused as refusal:
            outcome = type(refusal)(cut(str(refusal), REASON_LIMIT))
        except BaseException:
            self._lost(True)  # crashed or broken in the middle
            raise
        self.reply(outcome, end)

    def reply(self, outcome: bytes | NetError, end: Callable[[], None] = no_turn) -> None:
        size = self.network.weigh(self.service, outcome, True) if isinstance(outcome, bytes) else 0

        def lost(broke: bool) -> None:
            end()
            self._lost(broke)

        arrive = partial(self.settle, outcome)
        self.passage = self.network.carry(self.to, self.sender, size, arrive, lost, end)
        if self.is_watched and (host := self.network.hosts.get(self.sender)) is not None:
            host.coming.setdefault((self.to, self.service), Coming()).add(self.passage)
        if self.answer.done():
            self.end()

    def end(self) -> None:
        """The caller waits no more: what still is on its way stops there, as a stream that is closed."""
        if self.passage is not None:
            self.passage.cancel()

    def _lost(self, broke: bool) -> None:
        if broke:
            self.reply(Unreachable(f"{self.to} broke the connection before it answered"))

    def expire(self, seconds: float) -> None:
        self.settle(Silent(f"{self.to} did not answer `{self.service}` within {seconds:g} s"))

    def settle(self, outcome: bytes | NetError) -> None:
        if self.answer.done():
            return
        if isinstance(outcome, bytes):
            self.answer.set_result(outcome)
        else:
            self.answer.set_exception(outcome)


class MemoryMail:
    def __init__(self, network: MemoryNetwork, host: MemoryPeer) -> None:
        self._network = network
        self._host = host

    async def send(
        self, to: PeerId, service: str, data: bytes, timeout: float = 15.0, idle: float | None = None
    ) -> bytes:
        if len(data) > FRAME_LIMIT:
            raise ValueError(
                f"a message of {len(data)} bytes does not fit into {FRAME_LIMIT}: cut it (swarm.net.blobs"
                " does)"
            )
        call = PendingCall(self._network, self._host.peer, to, service, data, idle is not None)
        call.start()
        timer = asyncio.get_running_loop().call_later(timeout, call.expire, timeout)
        quiet = Quiet(self._host, call, idle) if idle is not None else None
        try:
            return await call.answer
        finally:
            timer.cancel()
            call.end()
            if quiet is not None:
                quiet.timer.cancel()

    async def serve(self, service: str, handler: Handler, turns: AnswerTurns | None = None) -> None:
        self._host.services[service] = handler, turns

    def guard(self, gate: Gate) -> None:
        self._host.gate = gate


class Quiet:
    """Settles a call as silent after `idle` seconds in which no byte of an answer of its service came from
    its peer."""

    def __init__(self, host: MemoryPeer, call: PendingCall, idle: float) -> None:
        self._host, self._call, self._idle = host, call, idle
        self.timer = asyncio.get_running_loop().call_later(idle, self._look)

    def _look(self) -> None:
        loop, call = asyncio.get_running_loop(), self._call
        coming = self._host.coming.get((call.to, call.service))
        until = coming.until() if coming is not None else 0.0
        until = (until if until < math.inf else loop.time()) + self._idle
        if loop.time() < until:
            self.timer = loop.call_at(until, self._look)
        else:
            call.settle(Silent(f"{call.to} {NOTHING_CAME} {self._idle:g} s"))
