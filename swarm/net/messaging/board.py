"""The Board port over hivemind's DHT, which runs in a child process, or in an observer's own process.

    put, get -> Dht.ask -> ChildDHT (swarm.net.libp2p.dht) or LoopDHT, each around hivemind's DHTNode
        -> other peers' nodes

Invariant: every call ends within ANSWER_SECONDS; a DHT that does not answer is reported to the node, which
replaces it. The functions that run beside the DHTNode take and return plain values. Not handled here:
permissions to write (swarm.net.messaging.guard), replacing it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from itertools import islice
from typing import Any, Protocol, TypeVar

import base58
from hivemind.dht.node import DHTNode
from hivemind.dht.protocol import ValidationError
from hivemind.dht.routing import DHTID
from hivemind.dht.storage import DHTLocalStorage, DictionaryDHTValue
from hivemind.dht.validation import DHTRecord, RecordValidatorBase
from hivemind.p2p import P2P, PeerID
from hivemind.p2p.p2p_daemon_bindings.control import P2PDaemonError

from swarm.core.membership import REMEMBERED
from swarm.limits import RECORD_LIMIT, RECORD_SECONDS
from swarm.net.messaging import guard
from swarm.net.ports import NetError, Silent
from swarm.types import Digest, PeerId

log = logging.getLogger(__name__)
T = TypeVar("T")

ANSWER_SECONDS = 10.0
"""Seconds for a DHT call: its own remote calls take 3 s each, and a lookup makes two or three in a row."""

CALLS = 16
"""DHT calls under way: the pipe to a hung child holds 64 KiB and a full one would block the loop; a call has
2 KiB at most."""

AT_ONCE = 32
"""Members passed to the DHT in one call: more than 1 KiB is not to wait in the pipe."""


class Dht(Protocol):
    """A DHT node, wherever it runs."""

    @property
    def pid(self) -> int | None:
        """Process id; None for a node that runs in this process."""
        ...

    async def ask(self, coroutine: Callable[..., Coroutine[Any, Any, T]], *args: Any) -> T:
        """Run `coroutine(node, *args)` beside the DHTNode. Raises Silent when it does not answer."""
        ...

    async def stop(self) -> None:
        """End the node."""
        ...

    def is_alive(self) -> bool:
        """Whether its process runs."""
        ...


class LoopDHT:
    """A DHT node in this process's own loop, for an observer: it reads, and stores nothing for others."""

    def __init__(self, node: DHTNode) -> None:
        self._node = node

    @property
    def pid(self) -> None:
        return None

    @classmethod
    async def launch(cls, daemon: P2P, rules: RecordValidatorBase, options: dict[str, Any]) -> LoopDHT:
        """Start the node over a p2pd, in client mode. Raises NetError."""
        try:
            return cls(
                await DHTNode.create(p2p=daemon, record_validator=rules, **{**options, "client_mode": True})
            )
        except (OSError, EOFError, P2PDaemonError) as error:
            raise NetError(f"the DHT did not start: {error or type(error).__name__}") from error

    async def ask(self, coroutine: Callable[..., Coroutine[Any, Any, T]], *args: Any) -> T:
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                return await coroutine(self._node, *args)
        except (TimeoutError, OSError, EOFError) as error:
            raise Silent(f"the DHT did not answer within {ANSWER_SECONDS:g} s") from error

    async def stop(self) -> None:
        await self._node.shutdown()

    def is_alive(self) -> bool:
        return bool(self._node.is_alive)


# The following run beside the DHTNode: where that is a child, arguments and results cross its pipe.


async def alive(node: DHTNode) -> bool:
    """Whether the DHTNode serves; asked beside it."""
    return bool(node.is_alive)


async def meet(node: DHTNode, peers: Sequence[bytes]) -> tuple[int, tuple[str, ...]]:
    """Greet connected peers and look for neighbours. Returns the peers that answered, and complaints, for
    example about a wrong clock."""
    node.blacklist.clear()  # hivemind's memory of a time when the network was away
    complaints: list[str] = []

    async def greet(peer: bytes) -> bool:
        try:
            return await node.protocol.call_ping(PeerID(peer), validate=True, strict=True) is not None
        except ValidationError as error:
            complaints.append(str(error))
        except Exception as error:  # hivemind reads a part of the answer after its own handler of errors
            log.debug("the answer of %s to a greeting cannot be read: %r", PeerID(peer), error)
        return False

    answered = sum(await asyncio.gather(*map(greet, peers)))
    if answered:
        await asyncio.wait({asyncio.ensure_future(node.find_nearest_nodes([node.node_id]))}, timeout=3.0)
    return answered, tuple(complaints)


def _make_way(storage: DHTLocalStorage, key: DHTID, subkey: bytes, expires: float) -> None:
    """Remove this peer's own record that ends later: its clock was ahead then. It would outlast all that
    follow, and others refuse all records that come with one that ends so late."""
    found = storage.get(key)
    if found is None or not isinstance(found.value, DictionaryDHTValue):
        return
    mine = found.value.get(subkey)
    if mine is not None and mine.expiration_time > expires:
        del found.value[subkey]


async def _put(node: DHTNode, record: tuple[str, bytes, bytes, float], alone: bool) -> bool:
    """Keep a record here, and wait until another node keeps it too unless this one is alone."""
    key, subkey, value, expires = record
    protocol, key_id = node.protocol, DHTID.generate(source=key)
    packed = protocol.serializer.dumps(value)
    record_id = DHTRecord(key_id.to_bytes(), protocol.serializer.dumps(subkey), packed, expires)
    signed = protocol.record_validator.sign_value(record_id)
    _make_way(protocol.storage, key_id, subkey, expires)
    kept = bool(protocol.storage.store_subkey(key_id, subkey, signed, expires))
    if alone:
        return kept
    return bool(await node.store(key, value, expires, subkey=subkey, exclude_self=True))


async def _get(node: DHTNode, key: str) -> dict[bytes, bytes]:
    found = await node.get(key, latest=True)
    if found is None or not isinstance(found.value, dict):
        return {}
    return {subkey: item.value for subkey, item in found.value.items() if isinstance(item.value, bytes)}


async def _know(node: DHTNode, members: Sequence[bytes], anew: bool, closed: bool) -> bool:
    guard.know(members, anew, closed)
    return True


async def _part(node: DHTNode) -> bool:
    """Forget the neighbours that are not answered."""
    table = node.protocol.routing_table
    for peer, place in list(table.peer_id_to_uid.items()):
        if not guard.is_answered(peer):
            del table[place]
    return True


class Owner(Protocol):
    """A board's view of its node."""

    me: PeerId
    run: Digest

    @property
    def alone(self) -> bool:
        """Whether there is no connection and no peer to connect to."""
        ...

    async def live_dht(self) -> Dht:
        """The current DHT; waits while it is replaced."""
        ...

    def doubt(self) -> None:
        """Report that the DHT did not answer, so that the node looks at it now."""
        ...


class DhtBoard:
    """The Board port over the node's current DHT."""

    def __init__(self, node: Owner) -> None:
        self._node = node
        self._calls = asyncio.Semaphore(CALLS)
        self._keys = frozenset(guard.allowed_keys(node.run))
        self._members: Callable[[], Iterable[PeerId]] = tuple
        self._closed = False
        self._passed: tuple[Dht | None, frozenset[PeerId]] = None, frozenset()

    def prefer(self, members: Callable[[], Iterable[PeerId]], closed: bool = False) -> None:
        """Keep the records of these peers before others' from now on, as many as a key has; where it is
        `closed` no other peer finds or stores anything here."""
        self._members, self._closed = members, closed

    async def pass_members(self) -> frozenset[PeerId]:
        """Pass the members to the current DHT. Returns those that a closed one answers from now on: they are
        no neighbours yet."""
        most = REMEMBERED if self._closed else guard.SUBKEYS
        dht, members = await self._node.live_dht(), frozenset(islice(self._members(), most))
        before, known = self._passed
        if (before, known) == (dht, members):
            return frozenset()
        found = [base58.b58decode(peer) for peer in sorted(members)]
        for start in range(0, max(len(found), 1), AT_ONCE):
            some = found[start : start + AT_ONCE]
            if not await self._ask(_know, some, start == 0, self._closed, otherwise=False):
                return frozenset()
        self._passed = dht, members
        if not self._closed or not await self._ask(_part, otherwise=False):
            return frozenset()
        return members if before is not dht else members - known

    async def put(self, key: str, value: bytes, ttl: float) -> bool:
        if len(value) > RECORD_LIMIT or not 0 < ttl <= RECORD_SECONDS or key not in self._keys:
            limits = f"{RECORD_LIMIT} bytes, {RECORD_SECONDS:g} s, the keys {sorted(self._keys)[:2]}"
            raise ValueError(f"the board takes {limits}; not {len(value)} bytes for {ttl:g} s under {key!r}")
        record = (key, base58.b58decode(self._node.me), value, time.time() + ttl)
        return bool(await self._ask(_put, record, self._node.alone, otherwise=False))

    async def get(self, key: str) -> Mapping[PeerId, bytes]:
        found = await self._ask(_get, key, otherwise={})
        return {PeerId(base58.b58encode(peer).decode()): value for peer, value in found.items()}

    async def _ask(
        self, coroutine: Callable[..., Coroutine[Any, Any, Any]], *args: Any, otherwise: Any
    ) -> Any:
        async with self._calls:
            try:
                async with asyncio.timeout(ANSWER_SECONDS):
                    dht = await self._node.live_dht()
                return await dht.ask(coroutine, *args)
            except (Silent, TimeoutError):
                self._node.doubt()
                return otherwise
