"""Gossip in one process: each reader has its copy of a message after a draw of the link.

Not handled here: gossip's several hops, and what a mesh passes on for others (swarm.net.memory.network).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING

from swarm.limits import EVENT_LIMIT
from swarm.net.memory.mail import MemoryPeer
from swarm.net.messaging.gossip import QUEUE
from swarm.net.ports import GossipGate
from swarm.types import PeerId

if TYPE_CHECKING:
    from swarm.net.memory.network import MemoryNetwork

BUCKETS = 4
"""Latencies drawn for one gossip message: each costs a timer, and four already spread the arrivals."""


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
    """Of one life of a peer: what it publishes after its crash reaches nobody."""

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
