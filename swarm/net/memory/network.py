"""All ports inside one process: peers as objects, links as timers. A product, not a stub: simulations and
tests live on it.

    ports of peer A -- Mail, Gossip, Board, Averager --> MemoryNetwork -- Links.seconds -->
        loop.call_later --> peer B

In come peers by name, out come their `Ports`. A network asks its `Links` how long a message takes, or has
them carry it beside others (mail, averaging rounds), and whether a pair is open or held. A message of gossip
is 4 KiB at most and shares no line: each reader has its copy after a draw of the link, and what a real mesh
passes on for others, some six copies a message and peer, is charged to nobody. Invariant: with a
deterministic loop and seeded links, the order of everything that happens is a function of the calls
(dictionaries and lists here, never sets). Keyring: NO SECURITY, see MemoryKeyring. Not handled: forged
senders (ports know who calls), gossip's several hops (one draw of the link stands for the whole way).
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
from collections.abc import Callable, Collection, Sequence
from functools import cached_property, partial
from random import Random
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

from swarm.core.gradient_checks.norm_screening import Usual
from swarm.core.gradient_checks.opposition import Opposition
from swarm.net.memory.board import MemoryBoard
from swarm.net.memory.gossip import MemoryGossip, Subscription
from swarm.net.memory.mail import Dials, MemoryMail, MemoryPeer, Weigh, as_it_is
from swarm.net.memory.means import Hands
from swarm.net.memory.rounds import Kept, Meetings, Said, Waits
from swarm.net.ports import Average, Ports
from swarm.net.turns import no_turn
from swarm.protocol import KINDS, Kind, Thread
from swarm.settings.config import Averaging, BatchSize
from swarm.types import PeerId

if TYPE_CHECKING:
    import torch

T = TypeVar("T")

EPOCH = 1_750_000_000.0
"""Unix seconds of loop time 0: fixed, so that a journal is the same bytes whenever it is made."""


class Passage(Protocol):
    """A message on its way."""

    @property
    def until(self) -> float:
        """Loop seconds until when its bytes arrive, or arrived; infinite while nobody knows."""
        ...

    def cancel(self) -> None:
        """Nobody waits for it any more: it takes no share of a line from now on."""
        ...


class Links(Protocol):
    """What a network asks of its links (swarm.sim.links answers)."""

    @property
    def whole(self) -> bool:
        """No fault is set anywhere: nothing else need be asked for the pairs of a fan-out."""
        ...

    def seconds(self, sender: PeerId, receiver: PeerId, size: int) -> float: ...

    def flow(
        self,
        sender: PeerId,
        receiver: PeerId,
        size: int,
        arrived: Callable[[], None],
        lost: Callable[[bool], None],
        departed: Callable[[], None] = ...,
    ) -> Passage | None:
        """Carry a message beside others. None where it passes as if it were alone, in `seconds`.

        `departed` is called when its last byte has left, `arrived` when all of it is there; or `lost` when it
        never will be, with whether the connection broke.
        """
        ...

    def uplink(self, peer: PeerId) -> int:
        """Bytes per second that a peer's line carries away from it; 0: nobody measured an end."""
        ...

    def crash(self, peer: PeerId) -> None:
        """Lose what is under way from and to a peer."""
        ...

    def open(self, sender: PeerId, receiver: PeerId) -> bool:
        """False while what is sent is lost."""
        ...

    def when_released(self, sender: PeerId, receiver: PeerId, deliver: Callable[[], None]) -> bool:
        """True when the pair is held and `deliver` was kept for its release."""
        ...


class Alone(NamedTuple):
    """A message that passes as if it were alone: when it arrives is known."""

    until: float

    def cancel(self) -> None:
        """It has no share of a line."""


class MemoryKeyring:
    """Signs with a keyed blake2b whose key follows from the peer id: 1 us instead of 100, and anybody could
    forge it."""

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
    """A machine's, in one loop: `offset` is what it shows beyond the time, in seconds."""

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


class MemoryNetwork:
    """Use as `async with`: mail handlers run as its tasks, an exception of theirs other than Refused ends it
    with a traceback.

    `averaging` are the run's settings of a round, `groups` its whole batch; `epoch` is the unix time of loop
    second 0. Where small bytes stand in for large ones, `weigh` says as what they count on the links, and
    `values` how many a gradient has.
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
        """A peer, or the next life of one that crashed. `price(kind)` is what Work of that kind costs, in
        seconds, of kinds in `each` for one item of a call's first argument; nobody can dial one that is
        `one_way`."""
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


class MemoryAverager:
    def __init__(self, network: MemoryNetwork, me: PeerId) -> None:
        self._network = network
        self._me = me
        self._kept = Kept(Usual(), Opposition())
        self._said = Said()

    def check(self, against: Collection[PeerId], key: int) -> None:
        self._said = self._said._replace(against=frozenset(against), key=key)

    def gone(self, peers: Collection[PeerId]) -> None:
        self._network.rounds.gone(self._me, peers)

    def hand_out(self, hands: Hands) -> None:
        """Hand out from now on something else than the means that I reduce."""
        self._said = self._said._replace(hands=hands)

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
        said = self._said._replace(marks=marks)
        return await self._network.rounds.average(
            self._me,
            self._kept,
            (version, weights),
            tensors,
            weight,
            peers,
            Waits(deadline, patience),
            said,
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
