"""The Gossip port over GossipSub: publish, and subscriptions that survive a replacement of p2pd.

In come topics, out come (signer, message) of others; p2pd has checked the signature. When p2pd is replaced, a
subscription subscribes again, and its reader only misses messages. Best effort: a message that is published
while p2pd is replaced is lost. Messages that a gate refuses never wait in the queue. Not handled: envelopes
and trust (swarm.frames.wire, swarm.core.membership).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Set
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Protocol

from swarm.limits import EVENT_LIMIT
from swarm.net.ports import GossipGate, NetError
from swarm.types import PeerId

log = logging.getLogger(__name__)

QUEUE = 256
"""Messages that wait for a slow reader: a few heartbeats of a whole swarm; beyond, the oldest are dropped."""

AGAIN_SECONDS = 0.2
"""Seconds between two tries to subscribe while p2pd is replaced."""

SUBSCRIBE_SECONDS = 30.0
"""Seconds within which a new subscription must succeed: p2pd's own start and one replacement."""

UNHEARD_SECONDS = 10.0
"""Seconds without any listener until the node reconnects; the pause doubles while that does not help."""

MUTE_SECONDS = 1.0
"""Seconds in which nothing goes to a connected peer until the node connects with it anew, at the next look;
the pause doubles while that does not help."""


class GossipDaemon(Protocol):
    """What gossip needs of p2pd (swarm.net.libp2p.p2pd.Daemon)."""

    async def publish(self, topic: str, message: bytes) -> None: ...

    async def listeners(self, topic: str) -> frozenset[PeerId]: ...

    def subscribe(self, topic: str) -> AbstractAsyncContextManager[AsyncIterator[tuple[PeerId, bytes]]]: ...


class PubSub:
    """The Gossip port. `line()` waits for the current p2pd."""

    def __init__(self, me: PeerId, line: Callable[[], Awaitable[GossipDaemon]], beats: str) -> None:
        """`beats`: the topic of heartbeats that every sender of heartbeats subscribes to; others begin with
        it."""
        self._me = me
        self._line = line
        self._beats, self._mute = beats, Mute()
        self.published: set[str] = set()
        """Topics published to so far."""
        self._gate: GossipGate = lambda author, size: size <= EVENT_LIMIT.sealed

    def guard(self, gate: GossipGate) -> None:
        self._gate = gate

    async def publish(self, topic: str, data: bytes) -> None:
        if len(data) > EVENT_LIMIT.sealed:
            raise ValueError(f"a gossip message of {len(data)} bytes does not fit into {EVENT_LIMIT.sealed}")
        self.published.add(topic)
        try:
            await (await self._line()).publish(topic, data)
        except NetError as error:
            log.debug("a message to %s was lost: %s", topic, error)

    async def mute(self, line: GossipDaemon, peers: Set[PeerId]) -> list[PeerId]:
        """Of these connected peers, those that nothing reaches, and with which to connect anew now."""
        streams, listeners = await line.listeners(""), await line.listeners(self._beats)
        return self._mute.due(peers, streams, listeners, time.monotonic())

    def subscribe(self, topic: str) -> AbstractAsyncContextManager[AsyncIterator[tuple[PeerId, bytes]]]:
        return self._subscribe(topic)

    @asynccontextmanager
    async def _subscribe(self, topic: str) -> AsyncIterator[AsyncIterator[tuple[PeerId, bytes]]]:
        inbox = Inbox()
        standing = asyncio.Event()
        async with asyncio.TaskGroup() as tasks:
            pump = tasks.create_task(self._pump(topic, inbox, standing), name=f"gossip {topic}")
            async with asyncio.timeout(SUBSCRIBE_SECONDS):
                await standing.wait()
            try:
                yield inbox
            finally:
                pump.cancel()

    async def _pump(self, topic: str, inbox: Inbox, standing: asyncio.Event) -> None:
        while True:
            try:
                line = await self._line()
                async with line.subscribe(topic) as messages:
                    standing.set()
                    async for author, data in messages:
                        self._receive(topic, author, data, inbox)
            except NetError as error:
                log.debug("the subscription of %s broke: %s", topic, error)
            await asyncio.sleep(AGAIN_SECONDS)

    def _receive(self, topic: str, author: PeerId, data: bytes, inbox: Inbox) -> None:
        if author == self._me or not self._gate(author, len(data)):
            return
        if topic.startswith(self._beats):
            self._mute.on_beat(author)
        inbox.push((author, data))


class Inbox:
    """A bounded queue with one reader; when it is full the oldest message is dropped."""

    def __init__(self) -> None:
        self._queue: deque[tuple[PeerId, bytes]] = deque(maxlen=QUEUE)
        self._filled = asyncio.Event()

    def push(self, message: tuple[PeerId, bytes]) -> None:
        """Add a message; drops the oldest one when the queue is full."""
        self._queue.append(message)
        self._filled.set()

    def __aiter__(self) -> AsyncIterator[tuple[PeerId, bytes]]:
        return self

    async def __anext__(self) -> tuple[PeerId, bytes]:
        while not self._queue:
            self._filled.clear()
            await self._filled.wait()
        return self._queue.popleft()


class NoSubscriber:
    """How long there has been no subscriber, and when to reconnect. Times are of one clock, in seconds."""

    def __init__(self, first: float | None = None) -> None:
        """`first`: seconds until the first time; default UNHEARD_SECONDS."""
        self._first = first
        self._since: float | None = None
        self._done = 0

    def due(self, now: float) -> bool:
        """Record that there is no subscriber now. True when the node should reconnect."""
        if self._since is None:
            self._since = now
        first = UNHEARD_SECONDS if self._first is None else self._first
        if now < self._since + first * (2 ** (self._done + 1) - 1):
            return False
        self._done += 1
        return True

    def over(self, now: float) -> float | None:
        """There is a subscriber now: the seconds without one, returned once and only after connecting
        anew."""
        since, done, self._since, self._done = self._since, self._done, None, 0
        return now - since if since is not None and done else None


class Mute:
    """Connected peers that receive none of this peer's messages, and when to connect with each anew.

    p2pd tries to open a stream for gossip on a peer's first connection alone. Where that is broken off, as is
    the later one of two dials at once, it sends nothing to the peer for as long as another connection stands
    (github.com/libp2p/go-libp2p-pubsub/issues/433). And where an old connection ends after a new one stands,
    it forgets the peer's subscriptions, which are sent only once.
    """

    def __init__(self) -> None:
        self._peers: Set[PeerId] = frozenset()
        """Connected ones, as of the last look."""
        self._beating = set[PeerId]()
        """Those of them that sent a heartbeat since they are connected."""
        self._waiting: dict[PeerId, NoSubscriber] = {}

    def on_beat(self, author: PeerId) -> None:
        """A peer sent a heartbeat, and therefore subscribes to those of others."""
        if author in self._peers:
            self._beating.add(author)

    def due(
        self, peers: Set[PeerId], streams: Set[PeerId], listeners: Set[PeerId], now: float
    ) -> list[PeerId]:
        """Of these connected peers, those with which to connect anew. `streams`: peers to which p2pd has a
        stream; `listeners`: subscribers to heartbeats, as p2pd knows."""
        self._peers = peers
        self._beating &= peers
        mute = (peers - streams) | (self._beating - listeners)
        self._waiting = {peer: self._waiting.get(peer) or NoSubscriber(MUTE_SECONDS) for peer in mute}
        return [peer for peer, one in self._waiting.items() if one.due(now)]
