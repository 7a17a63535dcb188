"""The connections of this node, where other peers can be dialled, and the way back to all of them.

    bootstrap addresses ------------- enter, watch ---> p2pd dials --> peers --greet--> DHT
    heartbeats, now or before ------- remember -------> enter, find, seek ---'
    other peers' introductions ------ introduce --^
      no connection, or a missing bootstrap peer: dial, until they are back
      no subscriber to messages published here: connect anew with the bootstrap peers
      this machine has another address: hang up on peers that do not answer, and dial
      a peer announces another address, and is connected twice: hang up, and dial it there
      no gossip goes to a connected peer: hang up, and dial it anew

Invariants: a peer is greeted once for each time it is connected; bootstrap peers are dialled as long as one
Invariants: a peer is greeted once for each time it is connected; bootstrap peers are dialled as long as one
is missing, and known peers as long as there is no connection. Not handled: which peers are worth seeking,
whether others can dial this node (swarm.net.libp2p.reachability), a p2pd that does not answer (it is doubted,
and swarm.net.libp2p.supervision looks at it).
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

import base58

from swarm.frames.grammar import some
from swarm.limits import remember
from swarm.net.libp2p.addresses import Address
from swarm.net.libp2p.children import NodeChildren
from swarm.net.libp2p.dialling import GRACE, PROBE_SECONDS, until_reached
from swarm.net.libp2p.listening import Scope, way_out
from swarm.net.libp2p.p2pd import Daemon, hang_up
from swarm.net.messaging.board import meet
from swarm.net.messaging.gossip import NoSubscriber, PubSub
from swarm.net.ports import NetError, Silent, Unreachable
from swarm.protocol import Part, Topic
from swarm.types import PeerId

log = logging.getLogger(__name__)
Report = Callable[[str, str, float | None], None]
"""(part, what happened, None) for a fault; (part, what happened, seconds it lasted) when it is over."""

Unreached = Callable[[Unreachable], Awaitable[bool]]
"""Decides about a node that reached no peer: it tries again (True), continues alone (False), or ends, by an
exception."""


async def give_up(error: Unreachable) -> bool:
    """A node that reached no peer ends."""
    raise error


async def go_on_alone(_: Unreachable) -> bool:
    """A node that reached no peer waits for others, and continues to dial them."""
    return False


Dialled = Callable[[str, str], None]
"""(address, why no peer could be reached there, or nothing where one was)."""


class WayIn(NamedTuple):
    """How a node begins, beside its bootstrap addresses."""

    met: Mapping[PeerId, Sequence[str]] = {}
    """Peers that were met before, and their addresses."""
    unreached: Unreached = give_up
    dialled: Dialled = lambda *_: None
    """Called with each address that was dialled on the way in, as soon as that is over."""
    port: int = 0
    """TCP port to listen at where the settings name none and no other program has it; 0: any."""
    watches: bool = False
    """It stores nothing for others on the board, and needs no process for that."""


BOOTSTRAP_ALONE = WayIn()


class Greeted(NamedTuple):
    """The answers of connected peers to a greeting."""

    answered: int = 0
    """Peers that answered well."""
    complaints: Sequence[str] = ()
    """Complaints of others, for example that their clock is not this machine's."""

    @property
    def clock_off(self) -> tuple[str, str] | None:
        """(how this machine's clock differs, what to do); None unless more peers complain of it than answered
        well: a single clock that is wrong may be another machine's."""
        off = [one for one in self.complaints if "local time" in one]
        if len(off) <= self.answered:
            return None
        if len(off) + self.answered == 1:
            what = f"this machine's clock is off from that of the one peer that answered: {off[0]}"
            return what, "one of the two is wrong: see which, and set it (NTP)"
        return f"this machine's clock is off, and the others refuse it: {off[0]}", "set the clock (NTP)"


LOOK_SECONDS = 2.0
"""Seconds between two looks at the connections; the network is found again within a few of these."""

DIAL_SECONDS = 5.0
"""Seconds between two dials of missing peers at the slowest."""

SOME = 8
"""Peers dialled or greeted at a time."""

ADDRESSES_KNOWN, ADDRESSES_OF_ONE = 1024, 4
"""Peers whose addresses are remembered, and how many of each."""

MOVES_SECONDS = 60.0
"""Seconds in which a peer that announces another address is connected from there; within 40, p2pd itself
detects a dead connection."""

NOBODYS = "/swarm/is-anybody-there"
"""A name that no peer serves a stream by."""

UNHEARD = frozenset({Topic.CONTRIBUTION, Topic.COUNTED})
"""Topics without subscribers where there is no other learner."""

REASONS = 3
"""Addresses whose failures are reported: the others are counted."""

HINTS = 256
"""Peers with addresses from other peers: those of a few fetches."""


def parsed(bootstrap: Sequence[str], me: PeerId) -> tuple[Address, ...]:
    """The addresses of other peers among them. Raises NetError with one that is no address."""
    addresses = [(text, Address.parse(text)) for text in bootstrap]
    for text, address in addresses:
        if address is None:
            raise NetError(
                f"{text!r} is not an address of a peer: it should look like"
                " /ip4/1.2.3.4/tcp/31337/p2p/12D3Koo..."
            )
    return tuple(address for _, address in addresses if address is not None and address.peer != me)


class Network:
    """See the module. `enter`, then a task for `watch`."""

    def __init__(
        self, me: PeerId, bootstrap: Sequence[Address], children: NodeChildren, gossip: PubSub, report: Report
    ) -> None:
        self.peers: frozenset[PeerId] = frozenset()
        """Connected ones, as of at most LOOK_SECONDS ago."""
        self._me, self._bootstrap, self._children = me, tuple(bootstrap), children
        self._gossip, self._report = gossip, report
        self._addresses: OrderedDict[PeerId, tuple[str, ...]] = OrderedDict()
        self._hints: OrderedDict[PeerId, tuple[str, ...]] = OrderedDict()
        """Addresses of a peer that others reported and it has not announced itself."""
        self._known: frozenset[PeerId] = frozenset()
        """Connected ones at the last look: they have been greeted."""
        self._here: tuple[str | None, tuple[str, ...]] = None, ()
        """This machine's address on the way to others, and those that p2pd found, at the last look."""
        self._moved: dict[PeerId, float] = {}
        """Peers that no longer announce an address -> until when they may be connected from there,
        monotonic."""
        self._lost_at: float | None = None
        self._dialled = 0.0
        self._unheard = NoSubscriber()

    @property
    def bootstrap_peers(self) -> frozenset[PeerId]:
        return frozenset(address.peer for address in self._bootstrap)

    def addresses_of(self, peer: PeerId) -> list[str]:
        """A peer's addresses, by the bootstrap addresses, itself, or else others."""
        first = [address.text for address in self._bootstrap if address.peer == peer]
        return [*(self._addresses.get(peer) or self._hints.get(peer, ())), *first]

    @property
    def alone(self) -> bool:
        """There is no connection and none is expected."""
        return not self.peers and not self._bootstrap

    def remember(self, peer: PeerId, addresses: Iterable[str]) -> None:
        """Remember the addresses that a peer announces in its heartbeat."""
        before, now = self._addresses.get(peer, ()), tuple(addresses)[:ADDRESSES_OF_ONE]
        if not {*before} <= {*now} and peer in self.peers:
            self._moved[peer] = time.monotonic() + MOVES_SECONDS
        remember(self._addresses, peer, now, ADDRESSES_KNOWN)

    def introduce(self, peer: PeerId, addresses: Iterable[str]) -> None:
        """Remember a peer's addresses from another peer, until it announces its own."""
        remember(self._hints, peer, tuple(addresses)[:ADDRESSES_OF_ONE], HINTS)

    def forget(self) -> None:
        """A new p2pd has no connections."""
        self.peers = frozenset()

    async def enter(self, unreached: Unreached, dialled: Dialled = lambda *_: None) -> None:
        """Connect with the bootstrap peers and those that were met before, all at once, if there are any;
        `unreached` decides when none answers, and `dialled` is called with each address."""
        while complaint := await self._enter(dialled):
            if not await unreached(Unreachable(complaint)):
                self._lost_at = time.monotonic()
                return self._report(Part.NETWORK, complaint, None)

    async def _enter(self, dialled: Dialled) -> str:
        """Which addresses failed, and how; empty when there is a connection or no known peer."""
        met = [address for peer in self._addresses if peer != self._me for address in self._to_dial(peer)]
        wanted = list(dict.fromkeys([*self._bootstrap, *met]))
        line = await self._children.line()

        async def reach(address: Address) -> str:
            why = await line.reach(address)
            dialled(address.text, why)
            return why

        reasons = await until_reached(reach, wanted, GRACE)
        self.peers = await line.connected()
        if not all(reasons) or not wanted:
            return ""
        failed = list(zip(wanted, reasons, strict=True))
        each = "; ".join(f"{address.text}: {why}" for address, why in failed[:REASONS])
        more = f"; and {len(failed) - REASONS} more" if len(failed) > REASONS else ""
        return f"no peer could be reached: {each}{more}"

    async def seek(self, peers: Iterable[PeerId]) -> None:
        """Dial those of these peers that are not connected, all at once, by the addresses that they
        announced."""
        missing = [peer for peer in peers if peer not in self.peers]
        await self._reach(
            await self._children.line(), [one for peer in missing for one in self._to_dial(peer)]
        )

    async def greet(self, peers: frozenset[PeerId]) -> Greeted:
        """Make connected peers known to the DHT, if it stands."""
        dht = self._children.dht
        if not peers or dht is None:
            return Greeted()
        some = random.sample(sorted(peers), min(SOME, len(peers)))
        return Greeted(*await dht.ask(meet, [base58.b58decode(peer) for peer in some]))

    async def find(self, peer: PeerId, timeout: float) -> None:
        """Before a stream is opened: dial by the addresses that the peer announced, unless it is connected;
        those over a relay last.

        libp2p must not dial a peer that is down again and again: it would wait minutes before it noticed the
        peer's return. Raises Unreachable when every address failed.
        """
        if peer in self.peers:
            return
        line = await self._children.line()
        self.peers = await line.connected()
        if peer in self.peers:
            return
        addresses = self._to_dial(peer)
        try:
            async with asyncio.timeout(timeout):
                reasons = await until_reached(line.reach, addresses)
        except TimeoutError:
            reasons = [f"timed out after {timeout:g} s"]
        if addresses and all(reasons):
            raise Unreachable("; ".join(reasons))

    # --- found again ----------------------------------------------------------------------------------------

    async def watch(self) -> None:
        """Run for ever: reconnect to a network that was lost."""
        self._known, self._here = self.peers, (way_out(), self._children.addresses)
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            try:
                await self._look(await self._children.line())
            except NetError as error:
                log.debug("p2pd or the DHT was replaced meanwhile: %s", error)
                self._children.doubted.set()

    async def _look(self, line: Daemon) -> None:
        self.peers = await line.connected()
        await self._follow_address(line)
        await self._follow_moved(line)
        await self._mend_gossip(line)
        missing = [address for address in self._bootstrap if address.peer not in self.peers]
        if self._lost_at is None and self._known and not self.peers:
            self._lost_at = time.monotonic()
            self._report(Part.NETWORK, "no peer is connected any more", None)
        if (missing or self._lost_at is not None) and time.monotonic() > self._dialled + DIAL_SECONDS:
            self._dialled = time.monotonic()
            await self._dial(line, missing)
            self.peers = await line.connected()
        await self.greet(self.peers - self._known)
        self._known = self.peers
        await self._reach_subscribers(line)
        if self._lost_at is not None and self.peers:
            seconds, self._lost_at = time.monotonic() - self._lost_at, None
            self._report(Part.NETWORK, f"connected again with {some(len(self.peers), 'peer')}", seconds)

    async def _follow_address(self, line: Daemon) -> None:
        """Where this machine has lost an address, hang up on peers that do not answer: a connection from
        there is dead, and p2pd keeps it for 40 seconds more."""
        way, before = self._here
        await self._children.locate(line)
        self._here = way_out(), self._children.addresses
        if {*before} <= {*self._here[1]} and way in (None, self._here[0]):
            return
        peers = sorted(self.peers)
        answers = await asyncio.gather(*(_answers(line, peer) for peer in peers))
        silent = [peer for peer, answered in zip(peers, answers, strict=True) if not answered]
        await self._dial_anew(line, silent)

    async def _follow_moved(self, line: Daemon) -> None:
        """Hang up on a peer that has moved and is connected twice, and dial it where it is now: p2pd goes on
        using the older connection, which leads nowhere."""
        now = time.monotonic()
        self._moved = {peer: until for peer, until in self._moved.items() if until > now}
        if not self._moved:
            return
        ends = await line.direct()
        twice = [peer for peer in self._moved if len(ends.get(peer, ())) > 1]
        for peer in twice:
            del self._moved[peer]
        await self._dial_anew(line, twice)

    async def _mend_gossip(self, line: Daemon) -> None:
        """Hang up on a peer to which no gossip goes, and dial it anew where it announced an address."""
        mute = await self._gossip.mute(line, self.peers - line.relayed)
        if known := [peer for peer in mute if self._to_dial(peer)]:
            await self._dial_anew(line, known)

    async def _dial_anew(self, line: Daemon, peers: Sequence[PeerId]) -> None:
        self.peers -= {*peers}
        for peer in peers:
            await line.disconnect(peer)
        await self._reach(line, [one for peer in peers for one in self._to_dial(peer)])
        self.peers = await line.connected()

    async def _reach_subscribers(self, line: Daemon) -> None:
        """Where no peer subscribes to messages published here, connect anew with the bootstrap peers, which
        then repeat their subscriptions: p2pd sends them once a connection, and when the stream for them
        fails, all published messages are lost.
        """
        near = [address for address in self._bootstrap if address.peer in self.peers]
        if not near:
            return  # others are dialled first
        wanted = [topic for topic in sorted(self._gossip.published) if topic.partition("/")[2] not in UNHEARD]
        deaf = [topic for topic in wanted if not await line.listeners(topic)]
        if deaf and self._unheard.due(time.monotonic()):
            self._report(
                Part.GOSSIP,
                f"no peer subscribes to {', '.join(deaf)}: connecting to the bootstrap peers again",
                None,
            )
            for address in near:
                await line.disconnect(address.peer)
            await self._dial(line, near)
        elif not deaf and (seconds := self._unheard.over(time.monotonic())) is not None:
            self._report(Part.GOSSIP, "connected peers listen again", seconds)

    async def _dial(self, line: Daemon, missing: Sequence[Address]) -> None:
        """Try the bootstrap peers that are missing and, when there is no connection, some of those that
        announced their addresses."""
        wanted = [*missing[:SOME]]
        if not self.peers:
            some = random.sample([*self._addresses], min(SOME, len(self._addresses)))
            wanted += [address for peer in some if peer != self._me for address in self._to_dial(peer)]
        await self._reach(line, wanted)

    async def _reach(self, line: Daemon, wanted: Sequence[Address]) -> None:
        reasons = await asyncio.gather(*map(line.reach, wanted))
        for address, why in zip(wanted, reasons, strict=True):
            log.debug("dialled %s: %s", address.text, why or "connected")

    def _to_dial(self, peer: PeerId) -> list[Address]:
        """A peer's announced addresses, or else those that others reported, as far as they are its own. One
        of another private network is left out where there is another way: the same address may belong to
        another machine here."""
        parsed = map(Address.parse, self.addresses_of(peer))
        found = [address for address in parsed if address is not None and address.peer == peer]
        mine = [one for text in self._children.addresses if (one := Address.parse(text)) is not None]
        far = [one for one in found if one.scope is Scope.PRIVATE and not one.relayed]
        far = [one for one in far if mine and not any(one.beside(own) for own in mine)]
        return [one for one in found if one not in far] or found


async def _answers(line: Daemon, peer: PeerId) -> bool:
    """Whether a connected peer answers."""
    try:
        _, writer = await line.open_stream(peer, NOBODYS, PROBE_SECONDS)
    except Silent:
        return False
    except Unreachable:  # it has no service of that name, and says so
        return True
    hang_up(writer)
    return True
