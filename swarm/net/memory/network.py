"""All ports inside one process: peers as objects, links as timers. A product, not a stub: simulations and
tests live on it.

    ports of peer A -- Mail, Gossip, Board, Averager --> MemoryNetwork -- Links.seconds -->
        loop.call_later --> peer B

In come peers by name, out come their `Ports`. A network asks its `Links` how long a message takes, or has
them carry it beside others (mail, averaging rounds), and whether a pair is open or held. A message of gossip
is 4 KiB at most and shares no line: each reader has its copy after a draw of the link, and forwarding in a
real mesh, some six copies a message and peer, costs nothing here. Invariant: with a deterministic loop and
seeded links, the order of everything that happens is a function of the calls (dictionaries and lists here,
never sets). Keyring: NO SECURITY, see MemoryKeyring. Not handled: forged senders (ports know their caller),
gossip's several hops (one draw of the link stands for the whole way).
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import math
from collections import deque
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import cached_property, partial
from random import Random
from typing import TYPE_CHECKING, Any, TypeVar

from swarm.core.gradient_checks.norm_screening import Usual
from swarm.core.gradient_checks.reducer_checks import Presences
from swarm.limits import EVENT_LIMIT, FRAME_LIMIT, REASON_LIMIT, RECORD_LIMIT, RECORD_SECONDS, cut
from swarm.net.memory.links import Alone, Dials, Links, Passage
from swarm.net.memory.rounds import Hands, Meetings, MemberAnnouncements, RoundHistory, Waits
from swarm.net.messaging.gossip import QUEUE
from swarm.net.ports import (
    NOTHING_CAME,
    Average,
    Busy,
    Gate,
    GossipGate,
    Handler,
    NetError,
    Ports,
    Refused,
    Silent,
    Turns,
    Unreachable,
)
from swarm.net.turns import no_turn
from swarm.protocol import KINDS, Kind, Thread
from swarm.settings.config import Averaging, BatchSize
from swarm.types import PeerId

if TYPE_CHECKING:
    import torch

T = TypeVar("T")

EPOCH = 1_750_000_000.0
"""Unix seconds of loop time 0: fixed, so that a journal is the same bytes whenever it is made."""

CONCURRENT = 64
"""Calls that a peer answers at once: p2pd manages 64 streams to one peer, 256 fail."""

BUCKETS = 4
"""Latencies drawn for one gossip message: each costs a timer, and four already spread the arrivals."""

Weigh = Callable[[str, bytes, bool], int]
"""(service, message, whether it is an answer) -> bytes that cross the link."""


def as_it_is(service: str, message: bytes, is_answer: bool) -> int:
    return len(message)


class MemoryNetwork:
    """Use as `async with`: mail handlers run as its tasks, an exception of theirs other than Refused ends it
    with a traceback.

    `averaging` are the run's settings of a round, `groups` its whole batch; `epoch` is the unix time of loop
    second 0. Where small bytes stand in for large ones, `weigh` gives their size on the links, and `values`
    the size of a gradient.
    """

    def __init__(
        self,
        rng: Random,
        links: Links,
        *,
        averaging: Averaging | None = None,
        groups: int = BatchSize().groups,
        epoch: float = EPOCH,
        weigh: Weigh = as_it_is,
        values: int = 0,
    ) -> None:
        self.rng = rng
        self.links = links
        self.clock = MemoryClock(epoch)
        self._epoch, self._clocks = epoch, dict[PeerId, MemoryClock]()
        self.hosts: dict[PeerId, MemoryPeer] = {}
        self.topics: dict[str, dict[Subscription, None]] = {}
        self.records: dict[str, dict[PeerId, tuple[bytes, float]]] = {}
        self.dials = Dials()
        self.rounds = Meetings(links, self.dials, averaging or Averaging(), groups, values)
        self.weigh = weigh
        self.tasks = asyncio.TaskGroup()

    async def __aenter__(self) -> MemoryNetwork:
        await self.tasks.__aenter__()
        return self

    async def __aexit__(self, *exit: Any) -> None:
        for peer in list(self.hosts):
            self.crash(peer)
        await self.tasks.__aexit__(*exit)

    def ports(
        self, name: str, price: Callable[[str], float], one_way: bool = False, each: Collection[str] = ()
    ) -> Ports:
        """A peer, or the next life of one that crashed. `price(kind)` is the cost of Work of that kind, in
        seconds, of kinds in `each` for one item of a call's first argument; a peer that is `one_way` cannot
        be dialled."""
        me = PeerId(name)
        if me in self.hosts:
            raise ValueError(f"peer {name} is already there: crash it first, or choose another name")
        host = self.hosts[me] = MemoryPeer(self, me)
        if one_way:
            self.dials.add(me)
        return Ports(
            clock=self.clock_of(me),
            board=MemoryBoard(self, me),
            gossip=MemoryGossip(self, host),
            mail=MemoryMail(self, host),
            averager=MemoryAverager(self, me),
            work=MemoryWork(price, each),
            keyring=MemoryKeyring(me),
            addresses=tuple if one_way else lambda: (f"/memory/{name}",),
        )

    def clock_of(self, peer: PeerId) -> MemoryClock:
        """The clock of a peer's machine, the same in all its lives."""
        return self._clocks.setdefault(peer, MemoryClock(self._epoch))

    def crash(self, peer: PeerId) -> None:
        """The peer is gone from one moment to the next: its calls break, its rounds are lost, its records
        stay until they expire."""
        host = self.hosts.pop(peer, None)
        if host is None:
            return
        for task in list(host.answering):
            task.cancel()
        for readers in self.topics.values():
            for reader in [reader for reader in readers if reader.peer == peer]:
                del readers[reader]
        self.rounds.crash(peer)
        self.links.crash(peer)
        self.dials.crash(peer)

    def carry(
        self,
        sender: PeerId,
        receiver: PeerId,
        size: int,
        deliver: Callable[[], None],
        lost: Callable[[bool], None],
        departed: Callable[[], None] = no_turn,
    ) -> Passage:
        """Call `departed` when `size` bytes have left, `deliver` when they have crossed the link; never, when
        it is cut by then.

        A message that shares lines with others calls `lost` instead when it stops on the way, with whether
        the connection broke. Any other leaves at once.
        """
        arrive = partial(self._arrive, sender, receiver, deliver)
        if (flow := self.links.flow(sender, receiver, size, arrive, lost, departed)) is not None:
            return flow
        departed()
        loop, seconds = asyncio.get_running_loop(), self.links.seconds(sender, receiver, size)
        loop.call_later(seconds, arrive)
        return Alone(loop.time() + seconds)

    def _arrive(self, sender: PeerId, receiver: PeerId, deliver: Callable[[], None]) -> None:
        links = self.links
        if links.whole or (
            links.open(sender, receiver) and not links.when_released(sender, receiver, deliver)
        ):
            deliver()


# --- mail ---------------------------------------------------------------------------------------------------


class Coming:
    """Answers of one service that are on their way from one peer to another."""

    def __init__(self) -> None:
        self._last = 0.0
        self._under: list[Passage] = []

    def add(self, answer: Passage) -> None:
        self.until()
        self._under.append(answer)

    def until(self) -> float:
        """Loop seconds until when their bytes arrive, or arrived; infinite while unknown."""
        self._last = max([self._last, *(one.until for one in self._under if one.until < math.inf)])
        self._under = [one for one in self._under if one.until == math.inf]
        return math.inf if self._under else self._last


class MemoryPeer:
    """One life of a peer: its handlers, and the answers under way."""

    def __init__(self, network: MemoryNetwork, peer: PeerId) -> None:
        self.network = network
        self.peer = peer
        self.services: dict[str, tuple[Handler, Turns | None]] = {}
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

    def answer(self, call: PendingCall, handler: Handler, turns: Turns | None) -> None:
        task = self.network.tasks.create_task(
            call.handle(handler, turns), name=f"{self.peer} answers {call.service}"
        )
        self.answering[task] = turns is None
        task.add_done_callback(self._answered)

    def _answered(self, task: asyncio.Task[None]) -> None:
        del self.answering[task]


class PendingCall:
    """One mail and its way back. It is settled once, whichever peer crashes meanwhile; one that its caller no
    longer awaits takes no share of a line."""

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

    async def handle(self, handler: Handler, turns: Turns | None) -> None:
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
        """The caller waits no more: messages still on their way stop there, as with a stream that is
        closed."""
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

    async def serve(self, service: str, handler: Handler, turns: Turns | None = None) -> None:
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


# --- gossip -------------------------------------------------------------------------------------------------


class Subscription:
    """A bounded queue and its one reader."""

    __slots__ = ("_gossip", "_waiting", "peer", "queue")

    def __init__(self, peer: PeerId, gossip: MemoryGossip) -> None:
        self.peer, self._gossip = peer, gossip
        self.queue: deque[tuple[PeerId, bytes]] = deque(maxlen=QUEUE)
        self._waiting: asyncio.Future[None] | None = None

    def push(self, message: tuple[PeerId, bytes]) -> None:
        if not self._gossip.gate(message[0], len(message[1])):
            return
        self.queue.append(message)
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)

    def __aiter__(self) -> AsyncIterator[tuple[PeerId, bytes]]:
        return self

    async def __anext__(self) -> tuple[PeerId, bytes]:
        while not self.queue:
            self._waiting = asyncio.get_running_loop().create_future()
            try:
                await self._waiting
            finally:
                self._waiting = None
        return self.queue.popleft()


class MemoryGossip:
    """Of one life of a peer: messages that it publishes after its crash reach no other."""

    def __init__(self, network: MemoryNetwork, host: MemoryPeer) -> None:
        self._network, self._host = network, host
        self._me = host.peer
        self.gate: GossipGate = lambda author, size: True

    def guard(self, gate: GossipGate) -> None:
        self.gate = gate

    async def publish(self, topic: str, data: bytes) -> None:
        if len(data) > EVENT_LIMIT.sealed:
            raise ValueError(f"a gossip message of {len(data)} bytes does not fit into {EVENT_LIMIT.sealed}")
        readers = list(self._network.topics.get(topic, ()))
        if not readers or self._network.hosts.get(self._me) is not self._host:
            return
        loop = asyncio.get_running_loop()
        shift = self._network.rng.randrange(BUCKETS)
        for k in range(BUCKETS):
            some = readers[(k + shift) % BUCKETS :: BUCKETS]
            if some:
                seconds = self._network.links.seconds(self._me, some[0].peer, len(data))
                loop.call_later(seconds, self._deliver, some, (self._me, data))

    def _deliver(self, readers: list[Subscription], message: tuple[PeerId, bytes]) -> None:
        me, links = self._me, self._network.links
        whole = links.whole
        for reader in readers:
            peer = reader.peer
            if peer == me:
                continue
            if whole or (
                links.open(me, peer) and not links.when_released(me, peer, partial(reader.push, message))
            ):
                reader.push(message)

    def subscribe(self, topic: str) -> AbstractAsyncContextManager[AsyncIterator[tuple[PeerId, bytes]]]:
        return self._listen(topic)

    @asynccontextmanager
    async def _listen(self, topic: str) -> AsyncIterator[AsyncIterator[tuple[PeerId, bytes]]]:
        reader = Subscription(self._me, self)
        readers = self._network.topics.setdefault(topic, {})
        readers[reader] = None
        try:
            yield reader
        finally:
            readers.pop(reader, None)


# --- board, averager, work, clock, keyring ------------------------------------------------------------------


class MemoryBoard:
    def __init__(self, network: MemoryNetwork, me: PeerId) -> None:
        self._network = network
        self._me = me

    async def put(self, key: str, value: bytes, ttl: float) -> bool:
        """True when another peer can be reached, or there is no other. Raises ValueError beyond 1 KiB or 120
        s."""
        if len(value) > RECORD_LIMIT or not 0 < ttl <= RECORD_SECONDS:
            raise ValueError(
                f"a record of {len(value)} bytes for {ttl:g} s: at most {RECORD_LIMIT} bytes and"
                f" {RECORD_SECONDS:g} s"
            )
        network, me = self._network, self._me
        await asyncio.sleep(network.links.seconds(me, me, len(value)))
        network.records.setdefault(key, {})[me] = (value, network.clock.now() + ttl)
        return len(network.hosts) == 1 or any(
            network.links.open(me, peer) for peer in network.hosts if peer != me
        )

    async def get(self, key: str) -> Mapping[PeerId, bytes]:
        """A reader on one side of a partition does not see the records of the other side."""
        network, me = self._network, self._me
        await asyncio.sleep(network.links.seconds(me, me, 0))
        now = network.clock.now()
        records = {peer: record for peer, record in network.records.get(key, {}).items() if record[1] > now}
        network.records[key] = records
        return {peer: value for peer, (value, _) in records.items() if network.links.open(peer, me)}


class MemoryAverager:
    def __init__(self, network: MemoryNetwork, me: PeerId) -> None:
        self._network = network
        self._me = me
        self._kept = RoundHistory(Usual(), Presences())
        self._announced = MemberAnnouncements()

    def check(self, against: Collection[PeerId], key: int) -> None:
        self._announced = self._announced._replace(against=frozenset(against), key=key)

    def gone(self, peers: Collection[PeerId]) -> None:
        self._network.rounds.gone(self._me, peers)

    def hand_out(self, hands: Hands) -> None:
        """Hand out from now on something else than the means that I reduce."""
        self._announced = self._announced._replace(hands=hands)

    async def average(
        self,
        version: int,
        tensors: Sequence[torch.Tensor],
        weight: float,
        peers: Collection[PeerId],
        deadline: float,
        marks: bytes = b"",
        weights: str = "",
        patience: float = 0.0,
    ) -> Average | None:
        announced = self._announced._replace(marks=marks)
        return await self._network.rounds.average(
            self._me,
            self._kept,
            (version, weights),
            tensors,
            weight,
            peers,
            Waits(deadline, patience),
            announced,
        )


class MemoryWork:
    """Runs the function inline, then sleeps the seconds that it costs in the simulation."""

    def __init__(self, price: Callable[[str], float], each: Collection[str]) -> None:
        self._price, self._each = price, each
        self._turns = {name: asyncio.Lock() for name in Thread}

    async def run(self, kind: Kind, function: Callable[..., T], *args: Any) -> T:
        async with self._turns[KINDS[kind].thread]:
            result = function(*args)
            await asyncio.sleep(self._price(kind) * (len(args[0]) if kind in self._each else 1))
            return result


class MemoryKeyring:
    """Signs with a keyed blake2b whose key follows from the peer id: 1 us instead of 100, and forgeable by
    any peer."""

    _blank: dict[PeerId, hashlib.blake2b] = {}

    def __init__(self, me: PeerId) -> None:
        self._me = me

    @property
    def me(self) -> PeerId:
        return self._me

    def sign(self, data: bytes) -> bytes:
        """64 bytes, as of an Ed25519 key, so that frames have their real size."""
        return self._tag(self._me, data)

    def verify(self, peer: PeerId, data: bytes, signature: bytes) -> bool:
        return hmac.compare_digest(self._tag(peer, data), signature)

    @classmethod
    def _tag(cls, peer: PeerId, data: bytes) -> bytes:
        blank = cls._blank.get(peer)
        if blank is None:
            blank = cls._blank[peer] = hashlib.blake2b(key=hashlib.blake2b(peer.encode()).digest())
        tag = blank.copy()
        tag.update(data)
        return tag.digest()


class MemoryClock:
    """A machine's clock, in one loop: `offset` is how far it is ahead, in seconds."""

    def __init__(self, epoch: float) -> None:
        self._epoch, self.offset = epoch, 0.0

    def now(self) -> float:
        return self._epoch + self.offset + self._elapsed()

    @cached_property
    def _elapsed(self) -> Callable[[], float]:
        """Loop seconds. Which loop runs is a question to the kernel, and a peer looks at its clock two
        thousand times an hour."""
        return asyncio.get_running_loop().time

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
