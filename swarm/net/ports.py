"""Ports: the protocols over which roles run, on a real network or in a simulation.

    port      real                                        simulated (swarm.net.memory.network)
    Clock     wall time, asyncio.sleep                    a loop that jumps to its next timer
    Board     hivemind.DHT                                dictionary with expiry
    Gossip    GossipSub of the p2pd that hivemind ships   fan-out over simulated links
    Mail      libp2p streams                              a call behind a link
    Averager  hivemind's all-reduce in a process           weighted mean after link delays
    Work      worker threads: model, rewards, hashes      the function inline, then sleep(cost)

Blobs (swarm.net.blobs.store) is one class over Mail and serves both. One contract suite
(tests/real/net/test_contract.py) runs against both columns. Senders are authenticated by the port (libp2p
handshake or GossipSub signature; memory ports know who calls).

Errors: NetError is the root; Unreachable (not dialled, or broken), Silent (no answer within the deadline),
Refused (with the reason), Busy (a Refused to repeat later), RoundLost (an averaging lost a part; nothing was
changed).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

from swarm.frames import wire
from swarm.protocol import Kind
from swarm.types import PeerId

if TYPE_CHECKING:
    import torch

    from swarm.core.gradient_checks.step_recipe import MeanRecipe
    from swarm.net.averaging.sketch import Sketches

T = TypeVar("T")

Handler = Callable[[PeerId, bytes], Awaitable[bytes]]
"""(sender, message) -> acknowledgement. A Refused that it raises is sent to the sender with its reason; any
other exception is a bug of ours."""


Gate = Callable[[PeerId, str], str | None]
"""(sender, service) -> why the sender may not use the service, or None."""

GossipGate = Callable[[PeerId, int], bool]
"""(author, bytes of its message) -> whether the message is taken."""


class NetError(Exception):
    """Root of the errors of ports: a request to the network failed."""


class Unreachable(NetError):
    """The peer could not be dialled, or the connection broke before the answer."""


NOTHING_CAME = "sent nothing for"
"""In a Silent of a call whose answer did not begin, or stopped."""


class Silent(NetError):
    """The peer did not answer within the deadline."""


class Refused(NetError):
    """The peer refused; the message gives the reason."""


class Busy(Refused):
    """The peer is busy with others. The caller may ask again later."""


def read_question(message: bytes, kind: type[T]) -> T:
    """The request to a handler of mail. Raises Refused for anything that is no such request, with the reason
    for its sender."""
    try:
        return wire.decode(message, kind)
    except wire.WireError as error:
        raise Refused(str(error)) from error


class RoundLost(NetError):
    """An averaging lost a member or a part in the middle. Tensors are as before the round."""


class NotFinite(RoundLost):
    """My own tensors are not finite: no round takes them."""


class Clock(Protocol):
    """Wall time, or virtual time."""

    def now(self) -> float:
        """Unix seconds (virtual ones in a simulation)."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Return after `seconds` of this clock."""
        ...


class Board(Protocol):
    """Small signed records that expire. A key holds one value per peer; only the peer can write its own."""

    async def put(self, key: str, value: bytes, ttl: float) -> bool:
        """Store a value under my own id: at most 1 KiB, for `ttl` seconds, at most 120. True when another
        node acknowledged it, or when there is no other node. Raises ValueError beyond the limits."""
        ...

    async def get(self, key: str) -> Mapping[PeerId, bytes]:
        """The values under a key that have not expired, by peer. Empty also when the board does not
        answer."""
        ...


class Gossip(Protocol):
    """Publish and subscribe, best effort."""

    async def publish(self, topic: str, data: bytes) -> None:
        """Send `data`, at most 4 KiB, to all subscribers of `topic`. Best effort: a message may be lost.
        Raises ValueError for a larger one."""
        ...

    def subscribe(self, topic: str) -> AbstractAsyncContextManager[AsyncIterator[tuple[PeerId, bytes]]]:
        """(sender, message) of other peers from now on. Bounded: when the reader is slow the oldest messages
        are dropped."""
        ...

    def guard(self, gate: GossipGate) -> None:
        """Drop from now on each message that `gate` does not take."""
        ...


class Turns(Protocol):
    """Bounds how many answers of a service are sent at once (swarm.net.turns)."""

    async def take(self, peer: PeerId) -> Callable[[], None]:
        """Wait for a turn. Returns the function that ends it, to be called once the answer has left. Raises
        Busy."""
        ...


class Mail(Protocol):
    """A message with an acknowledgement, at most 4 MiB each way."""

    async def send(
        self, to: PeerId, service: str, data: bytes, timeout: float = 15.0, idle: float | None = None
    ) -> bytes:
        """Deliver `data`, at most 4 MiB, and return the acknowledgement.

        `timeout` bounds the whole call, in seconds. With `idle` the peer counts as silent after that many
        seconds without a byte of any answer of this service: a large answer over a slow link is not late
        while it arrives.

        Raises Unreachable, Silent, Refused or Busy. After the first two the message may or may not have been
        handled: receivers know repeated messages by their ids.
        """
        ...

    async def serve(self, service: str, handler: Handler, turns: Turns | None = None) -> None:
        """Answer `service` with `handler` from now on. Concurrent calls are bounded for each service; beyond
        the bound senders get Busy.

        With `turns` a call waits for its turn before it is handled, and keeps it until its answer is sent.
        """
        ...

    def guard(self, gate: Gate) -> None:
        """Refuse from now on, before a message is read, peers for which `gate` returns a reason."""
        ...


@dataclass(frozen=True, slots=True)
class Average:
    """Outcome of a round of averaging."""

    members: frozenset[PeerId]
    """Peers that contributed, this one included."""
    seconds: float
    """Duration of the round."""
    exchanged: Mapping[PeerId, int] = field(default_factory=dict)
    """Bytes of tensors received from each other member; as many were sent to it. Unknown for a broken
    round."""
    scaled: Mapping[PeerId, float] = field(default_factory=dict)
    """Member -> factor, for each gradient that was scaled down
    (swarm.core.gradient_checks.norm_screening)."""
    marks: Mapping[PeerId, bytes] = field(default_factory=dict)
    """Member whose tensors count -> its marks of its groups."""
    false: frozenset[PeerId] = frozenset()
    """Members that reduced nothing, since most others doubt their means
    (swarm.core.gradient_checks.reducer_checks)."""
    named: Mapping[PeerId, Collection[PeerId]] = field(default_factory=dict)
    """Members -> those that have proof against them."""
    sketches: Sketches | None = None
    """Of the other members' tensors, as far as they came here; None unless `Averager.check` asked for it."""
    recipe: MeanRecipe | None = None
    """How the mean is made of the members' tensors; None where it cannot be recomputed."""
    through: frozenset[PeerId] = frozenset()
    """Members to which p2pd carried this one's tensors, since their port for parts was not reached."""


class Averager(Protocol):
    """Weighted means over learners that are at the same version."""

    def check(self, against: Collection[PeerId], key: int) -> None:
        """In the next rounds this peer names `against` as members to leave out
        (swarm.core.gradient_checks.majority), and keeps sketches by a secret `key`; 0 keeps none."""
        ...

    def gone(self, peers: Collection[PeerId]) -> None:
        """The round that forms now does not wait for these peers any more."""
        ...

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
        """Replace `tensors` (float32 on the CPU, any shapes, the same ones at all members) in place by their
        weighted mean over this peer and those of `peers` that average for `version` with the same `weights`:
        parts of a swarm that was cut may have several versions of one number. `weight` is in full groups; a
        member without groups brings zeros, which add nothing, and gets the mean of the others.

        All members end with identical bytes. Weights and norms are screened
        (swarm.core.gradient_checks.norm_screening). `peers` are the other learners that may take part.
        `marks`, at most MARK_BYTES * MARKED bytes, identify the groups behind the tensors
        (swarm.core.agreement.trained); of two members with the same group one counts, a member that is left
        out (swarm.core.gradient_checks.majority) does not, and all get the marks of those that count. The
        others are awaited until the first member's match window is over; this one's is `patience` seconds
        longer than the run's. `deadline` is in seconds from now and always holds. None when no other member
        came (tensors unchanged). Raises RoundLost when the round broke or `tensors` are not finite (tensors
        unchanged).
        """
        ...


class Work(Protocol):
    """Runs slow code outside of the event loop, on the threads of `swarm.protocol.KINDS`."""

    async def run(self, kind: Kind, function: Callable[..., T], *args: Any) -> T:
        """The result of `function(*args)`, run on the thread of its kind, one call at a time and in order. A
        simulation prices it by `kind`. Raises what `function` raises."""
        ...


def _forget(peer: PeerId, addresses: Sequence[str]) -> None:
    """Peers are not dialled by addresses here."""


class Reach(NamedTuple):
    """How peers that fetch the same find each other."""

    addresses: Callable[[], Sequence[str]] = tuple
    """Where other peers can dial me; empty where they cannot."""
    introduced: Callable[[PeerId, Sequence[str]], None] = _forget
    """Called with a peer's addresses, as another peer reports them."""


@dataclass(frozen=True, slots=True)
class Ports:
    """The ports of one peer: all that a role uses of the world."""

    clock: Clock
    board: Board
    gossip: Gossip
    mail: Mail
    averager: Averager
    work: Work
    keyring: wire.Signer
    addresses: Callable[[], tuple[str, ...]]
    """Multiaddresses under which other peers can dial this one; empty where they cannot."""
    relayed: Callable[[], Collection[PeerId]] = tuple
    """Peers that are connected only over a relay."""
    carried: Callable[[], int] = int
    """Bytes that this peer has carried between others so far."""
    introduced: Callable[[PeerId, Sequence[str]], None] = _forget
    """Called with a peer's addresses, as another peer reports them."""

    @property
    def reach(self) -> Reach:
        return Reach(self.addresses, self.introduced)

    @property
    def me(self) -> PeerId:
        return self.keyring.me
