"""Ports: all that a role may know of the world. One role code, two worlds.

    port      real                                        simulated (swarm.net.in_memory)
    Clock     wall time, asyncio.sleep                    a loop that jumps to its next timer
    Board     hivemind.DHT                                dictionary with expiry
    Gossip    GossipSub of the p2pd that hivemind ships   fan-out over simulated links
    Mail      libp2p streams                              a call behind a link
    Averager  hivemind's all-reduce in a process           weighted mean after link delays
    Work      worker threads: model, rewards, hashes      the function inline, then sleep(cost)

Blobs (swarm.net.blobs) is one class over Mail and serves both. One contract suite
(tests/net/test_contract.py) runs against both columns. Senders are authenticated by the port (libp2p
handshake or GossipSub signature; memory ports know who calls).

Errors: NetError is the root; Unreachable (nobody there), Silent (no answer within the deadline), Refused (the
other side said no and why), Busy (a Refused that may be a yes later), RoundLost (an averaging that lost a
part: nothing was changed).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from swarm.protocol import Kind
from swarm.types import PeerId

if TYPE_CHECKING:
    import torch

    from swarm.net.turns import AnswerTurns

T = TypeVar("T")

Handler = Callable[[PeerId, bytes], Awaitable[bytes]]
"""(sender, message) -> acknowledgement. A Refused that it raises is sent to the sender with its reason; any
other exception is a bug of ours."""


class NetError(Exception):
    """The network did not do what was asked."""


class Unreachable(NetError):
    """Nobody could be dialled, or the connection broke before the answer."""


class Silent(NetError):
    """The other side is there but did not answer within the deadline."""


class Refused(NetError):
    """The other side answered no; the message says why."""


class Busy(Refused):
    """The other side is busy with others. The caller may ask again later; this is no fault of the peer."""


class RoundLost(NetError):
    """An averaging lost a member or a part in the middle. Tensors are as before the round."""


class Clock(Protocol):
    def now(self) -> float:
        """Unix seconds (virtual ones in a simulation)."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Return after `seconds` of this clock."""
        ...


class Board(Protocol):
    """Small signed records that expire. A key holds one value per peer; only the peer can write its own."""

    async def put(self, key: str, value: bytes, ttl: float) -> bool:
        """Store under my own id; at most 1 KiB and 120 s. True when another node acknowledged it (or there is
        none)."""
        ...

    async def get(self, key: str) -> Mapping[PeerId, bytes]:
        """Live values by peer; empty when nothing is there."""
        ...


class Gossip(Protocol):
    async def publish(self, topic: str, data: bytes) -> None:
        """Send at most 4 KiB to all subscribers of `topic`, best effort: a message may be lost."""
        ...

    def subscribe(self, topic: str) -> AbstractAsyncContextManager[AsyncIterator[tuple[PeerId, bytes]]]:
        """(sender, message) of others, not my own, from now on. Bounded: when the reader is slow the oldest
        are dropped."""
        ...


class Mail(Protocol):
    """A message with an acknowledgement, at most 4 MiB each way."""

    async def send(
        self, to: PeerId, service: str, data: bytes, timeout: float = 15.0, idle: float | None = None
    ) -> bytes:
        """Deliver and wait for the acknowledgement.

        `timeout` bounds the whole call, in seconds. With `idle` a peer counts as silent already after so many
        seconds without a byte of any answer of this service: a large answer over a slow line is not late
        while it arrives.

        Raises Unreachable, Silent, Refused or Busy. After the first two the message may or may not have been
        handled: receivers know repeated messages by their ids.
        """
        ...

    async def serve(self, service: str, handler: Handler, turns: AnswerTurns | None = None) -> None:
        """Answer `service` from now on. Concurrent calls are bounded for each service; beyond that senders
        are told Busy.

        With `turns` a call waits for its turn before it is handled, and has it until its answer has left.
        """
        ...


@dataclass(frozen=True, slots=True)
class Average:
    """Outcome of a round: who contributed (me included), how long it took, what passed."""

    members: frozenset[PeerId]
    seconds: float
    exchanged: Mapping[PeerId, int] = field(default_factory=dict)
    """Bytes of tensors received from each other member; as many were sent to it. Unknown for a broken
    round."""
    scaled: Mapping[PeerId, float] = field(default_factory=dict)
    """Member -> factor, for each gradient that was scaled down (swarm.core.standing)."""


class Averager(Protocol):
    async def average(
        self,
        version: int,
        tensors: Sequence[torch.Tensor],
        weight: float,
        peers: Collection[PeerId],
        deadline: float,
    ) -> Average | None:
        """Replace `tensors` (float32, any shapes, the same ones at all members) in place by the weighted mean
        over those of `peers` that came for `version`. `weight` is above 0, in full groups.

        All members end with identical bytes. Weights and norms are screened (swarm.core.standing). `peers`
        are the learners believed to take part (without me); nobody else is averaged with. `deadline` is in
        seconds from now and always holds. None when nobody came (tensors unchanged). Raises RoundLost when
        the round broke or `tensors` are not finite (tensors unchanged).
        """
        ...


class Work(Protocol):
    """Runs slow code outside of the event loop."""

    async def run(self, kind: Kind, function: Callable[..., T], *args: Any) -> T:
        """Run `function(*args)` on the thread of its kind; there one at a time, in order. `kind` prices it in
        a simulation. Raises what `function` raises."""
        ...


class Keyring(Protocol):
    """Signs with this peer's key, verifies with any peer's."""

    @property
    def me(self) -> PeerId: ...

    def sign(self, data: bytes) -> bytes:
        """Signature of 64 bytes."""
        ...

    def verify(self, peer: PeerId, data: bytes, signature: bytes) -> bool:
        """Whether `signature` is of `data` by the key inside `peer`; False also for an id that holds no
        key."""
        ...


@dataclass(frozen=True, slots=True)
class Ports:
    """All that a role may use of the world."""

    clock: Clock
    board: Board
    gossip: Gossip
    mail: Mail
    averager: Averager
    work: Work
    keyring: Keyring
    addresses: Callable[[], tuple[str, ...]]
    """Multiaddresses where others may dial me; empty in memory."""
    relayed: Callable[[], Collection[PeerId]] = tuple
    """Peers that I am connected with over a relay alone."""

    @property
    def me(self) -> PeerId:
        return self.keyring.me
