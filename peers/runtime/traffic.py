"""Counts the bytes between this peer and others by purpose: decorators over the Mail and Gossip ports,
alike in both worlds.

    mail, gossip, averaging -> Traffic -> drain(): the fields of a Transferred event, every few heartbeats

Requests and answers have a purpose each, so that a purpose flows one way: `rollouts` to learners, `weights`
from the peers that hold them, `gradients` between learners (averaging, and state transfers). Gossip is
counted without a sender: its signer is seldom the neighbour that delivered it. Bytes are those of messages as
roles send them; those that a relay forwards between others are `carried`, in and out. Not counted: overhead
of libp2p, GossipSub's copies, the DHT and encryption, messages that break off, and traffic from before the
host existed (the run's specification).
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from typing import Any

from swarm import events
from swarm.net.ports import Gossip, Handler, Mail, Ports, Refused, Silent, Turns
from swarm.protocol import SERVICES
from swarm.types import Link, PeerId

EVERY_BEATS = 5
"""Heartbeats between two Transferred events, of which one is as long as two heartbeats: flows are means."""

LINKS_PER_EVENT = 12
"""Peers named in one event: about 160 bytes each, so that the rest of its 4 KiB holds envelope and
membership."""

COUNTED_PEERS = 4096
"""Peers that are counted one by one between two events; further ones are in the sums only."""

TIMED_UP_TO = 16 << 10
"""Bytes of a request and of its answer up to which their time counts as a round trip: 16 KiB take 0.1 s at 1
Mbit/s."""

RTT_SPAN = 60.0
"""Seconds over which the fastest answer is taken: a path that becomes slower shows within a minute."""

ASKED = {service: row.asked for service, row in SERVICES.items()}
ANSWERED = {service: row.answered for service, row in SERVICES.items()}
OTHER = "other"
"""Purpose of services that are in no table."""


class Traffic:
    """Sums since the last `drain`. `now` is in unix seconds."""

    def __init__(self, now: float) -> None:
        self.gossiped = 0
        """Bytes of gossip received; a plain sum, since gossip has the most messages."""
        self._since, self._carried = now, 0
        self._sent: Counter[str] = Counter()
        self._received: Counter[str] = Counter()
        self._from: dict[PeerId, Counter[str]] = {}
        self._fastest: dict[PeerId, float] = {}
        """Peer -> seconds of its fastest answer since the last `drain`."""
        self._history: dict[PeerId, deque[tuple[float, float]]] = {}
        """Peer -> (when it was drained, fastest answer) of the last RTT_SPAN seconds."""

    def counted(self, ports: Ports) -> Ports:
        """The same ports, with their mail and gossip counted."""
        return replace(ports, mail=CountedMail(ports.mail, self), gossip=CountedGossip(ports.gossip, self))

    def sent(self, purpose: str, size: int) -> None:
        self._sent[purpose] += size

    def received(self, purpose: str, size: int, peer: PeerId | None = None) -> None:
        self._received[purpose] += size
        if peer is None:
            return
        if (link := self._from.get(peer)) is not None:
            link[purpose] += size
        elif len(self._from) < COUNTED_PEERS:
            self._from[peer] = Counter({purpose: size})

    def averaged(self, exchanged: Mapping[PeerId, int]) -> None:
        """Count a round's bytes; as many were sent to each member as came from it."""
        for peer, size in exchanged.items():
            self.sent("gradients", size)
            self.received("gradients", size, peer)

    def answered(self, peer: PeerId, seconds: float) -> None:
        self._fastest[peer] = min(seconds, self._fastest.get(peer, seconds))

    def drain(self, now: float, relayed: Collection[PeerId], carried: int = 0) -> dict[str, Any] | None:
        """The bytes since the last call, as the fields of a Transferred event; None when there are none.
        `carried` are those between others, so far: they came in and went out."""
        seconds, self._since = max(now - self._since, 0.0), now
        fastest = self._fastest_of_span(now)
        self._received["gossip"] += self.gossiped
        for sums in (self._sent, self._received):
            sums["carried"] += carried - self._carried
        self._carried = carried
        sent, received = (
            {name: size for name, size in sums.items() if size} for sums in (self._sent, self._received)
        )
        links = self._from
        self._sent, self._received, self._from, self.gossiped = Counter(), Counter(), {}, 0
        if not sent and not received:
            return None
        most = sorted(links, key=lambda peer: (-sum(links[peer].values()), peer))[:LINKS_PER_EVENT]
        return {
            "seconds": round(seconds, 3),
            "sent": sent,
            "received": received,
            "links": {
                peer: Link(
                    received=dict(links[peer]), rtt=round(fastest.get(peer, 0.0), 5), relayed=peer in relayed
                )
                for peer in most
            },
        }

    def _fastest_of_span(self, now: float) -> dict[PeerId, float]:
        """Peer -> seconds of its fastest answer of the last RTT_SPAN seconds."""
        for peer, seconds in self._fastest.items():
            self._history.setdefault(peer, deque()).append((now, seconds))
        self._fastest = {}
        for peer, marks in list(self._history.items()):
            while marks and marks[0][0] < now - RTT_SPAN:
                marks.popleft()
            if not marks:
                del self._history[peer]
        return {peer: min(seconds for _, seconds in marks) for peer, marks in self._history.items()}


class CountedMail:
    """The Mail port, counted."""

    def __init__(self, mail: Mail, traffic: Traffic) -> None:
        self._mail, self._traffic = mail, traffic
        self.guard = mail.guard

    async def send(
        self, to: PeerId, service: str, data: bytes, timeout: float = 15.0, idle: float | None = None
    ) -> bytes:
        traffic, loop = self._traffic, asyncio.get_running_loop()
        began = loop.time()
        try:
            answer = await self._mail.send(to, service, data, timeout, idle)
        except (Refused, Silent):  # it went out all the same
            traffic.sent(ASKED.get(service, OTHER), len(data))
            raise
        traffic.sent(ASKED.get(service, OTHER), len(data))
        traffic.received(ANSWERED.get(service, OTHER), len(answer), to)
        if len(data) <= TIMED_UP_TO and len(answer) <= TIMED_UP_TO:
            traffic.answered(to, loop.time() - began)
        return answer

    async def serve(self, service: str, handler: Handler, turns: Turns | None = None) -> None:
        async def counted(sender: PeerId, message: bytes) -> bytes:
            self._traffic.received(ASKED.get(service, OTHER), len(message), sender)
            answer = await handler(sender, message)
            self._traffic.sent(ANSWERED.get(service, OTHER), len(answer))
            return answer

        await self._mail.serve(service, counted, turns)


class CountedGossip:
    """The Gossip port, counted: each message once, however many copies arrive."""

    def __init__(self, gossip: Gossip, traffic: Traffic) -> None:
        self._gossip, self._traffic = gossip, traffic
        self.guard = gossip.guard

    async def publish(self, topic: str, data: bytes) -> None:
        await self._gossip.publish(topic, data)
        self._traffic.sent("gossip", len(data))

    def subscribe(self, topic: str) -> AbstractAsyncContextManager[AsyncIterator[tuple[PeerId, bytes]]]:
        return self._subscribe(topic)

    @asynccontextmanager
    async def _subscribe(self, topic: str) -> AsyncIterator[AsyncIterator[tuple[PeerId, bytes]]]:
        async with self._gossip.subscribe(topic) as messages:
            yield _Counted(messages, self._traffic)


class _Counted:
    """Messages as they come, each counted."""

    def __init__(self, messages: AsyncIterator[tuple[PeerId, bytes]], traffic: Traffic) -> None:
        self._next, self._traffic = messages.__anext__, traffic

    def __aiter__(self) -> AsyncIterator[tuple[PeerId, bytes]]:
        return self

    async def __anext__(self) -> tuple[PeerId, bytes]:
        message = await self._next()
        self._traffic.gossiped += len(message[1])
        return message


class TrafficReports:
    """Transferred events, now and then."""

    def __init__(
        self, traffic: Traffic, ports: Ports, emit: Callable[..., None], pause: Callable[[], float]
    ) -> None:
        """`pause()`: seconds until the next one."""
        self._traffic, self._ports, self._emit, self._pause = traffic, ports, emit, pause

    async def run(self) -> None:
        while True:
            await self._ports.clock.sleep(self._pause())
            self.report()

    def report(self) -> None:
        """Emit what passed since the last one."""
        now = self._ports.clock.now()
        if passed := self._traffic.drain(now, self._ports.relayed(), self._ports.carried()):
            self._emit(events.Transferred, **passed)
