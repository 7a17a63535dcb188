"""Limits on peers' messages that hivemind lacks: frame sizes, streams, msgpack, ids, requests, DHT records.

    bytes from a stranger -> frame cap -> stream slots -> msgpack bounds -> budget per peer -> record rules
        -> hivemind

`install()` patches hivemind's classes; call it once, before any P2P or DHT: forked children inherit it.
Messages beyond a limit are refused, closed or raised as ValueError into hivemind's own error path, before
memory is allocated for them. A stream that ends in the middle of a message ends its task, and nothing is
printed. Invariant: every record that a node keeps or returns was signed by the Ed25519 key inside its subkey,
lies under a key of the run, is small and expires soon. Not handled: a storing node that hides records.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Hashable, Iterable
from typing import Any, ClassVar

os.environ.setdefault("HIVEMIND_LOGLEVEL", "DEBUG" if os.environ.get("SWARM_LOG") == "debug" else "WARNING")
# hivemind reads it while it is imported, and hands it on to p2pd.

import base58
import msgpack
from hivemind.dht.protocol import DHTProtocol
from hivemind.dht.routing import DHTID
from hivemind.dht.storage import DictionaryDHTValue
from hivemind.dht.validation import DHTRecord, RecordValidatorBase
from hivemind.p2p import P2P, P2PContext, PeerID
from hivemind.p2p.p2p_daemon_bindings.control import ControlClient
from hivemind.proto import dht_pb2
from hivemind.utils import MSGPackSerializer

from swarm.core.budget import Budget
from swarm.frames.wire import Signer, topic
from swarm.limits import FRAME_LIMIT, ID_LIMIT, RECORD_LIMIT, RECORD_SECONDS
from swarm.membership.identity import public_key, verify
from swarm.protocol import Key
from swarm.types import Digest, PeerId

log = logging.getLogger(__name__)

DECODE_BYTES = 1 << 20
"""Bytes of msgpack decoded at once: a key that is full of records is 600 KiB; hivemind's other msgpack is
below 1 KiB."""

DECODE_ITEMS = 4096
"""Elements of one array or map: a full key has 512 records."""

DECODE_TYPES = (MSGPackSerializer._TUPLE_EXT_TYPE_CODE, 0x50)
"""Extension types that are decoded: a tuple, and a dictionary of records. hivemind's third one describes a
tensor: it looks names from its sender up in torch, which imports compilers, and raises any exception of
torch."""

DECODE_DEPTH = 4
"""Nested extension types: hivemind nests two (a dictionary whose items hold a tuple)."""

FRAME_SECONDS = 30.0
"""Seconds from a frame's header to its last byte: 4 MiB at 140 kB/s."""

IDLE_SECONDS = 300.0
"""Seconds between two frames of one of hivemind's streams: a follower is silent while its leader gathers and
reduces, minutes over a WAN."""

STREAMS_PER_PEER = 64
"""Streams of one peer: p2pd manages 64 to one peer at once, 256 fail; an averaging opens two for each
member."""

STREAMS = 512
"""Streams in one process: half of the usual limit of 1024 open files."""

SUBKEYS = 512
"""Records under one key: strangers can make identities freely, so that a key must not grow with them."""

NEWCOMERS = 64
"""Those of them that are not of peers which this node knows as members, once it knows any: members alone post
to the board, and few of them are not known yet. A further one takes the place of the oldest."""

REQUEST_KEYS = 128
"""Records in one request of one of our nodes: a handful, and those of a hand-over."""

PEER_RATE, PEER_BURST = 50.0, 1500.0
"""Units (a record, or a KiB) a second: a peer refreshes a handful of records every 40 s; the burst is one
hand-over of a full key, and more than a request may hold."""

ALL_RATE, ALL_BURST = 500.0, 6000.0
"""The same over all peers: a thousand peers at their normal rate, and ten hand-overs."""

PEERS_KNOWN = 4096
"""Peers whose budget is remembered; the one that was silent for longest is forgotten first: its budget is
full again by then."""

SKEW_SECONDS = 3.0
"""hivemind's own tolerance between two clocks."""

SIGNATURE = 64


class GuardError(ValueError):
    """A peer's bytes broke a limit."""


# --- records ------------------------------------------------------------------------------------------------


def averaging_prefix(run: Digest) -> str:
    """Prefix of the names of a run's averaging calls at p2pd."""
    return f"{run[:16]}_grads"


def allowed_keys(run: Digest) -> tuple[str, ...]:
    """The keys under which records may be stored."""
    return tuple(topic(run, key) for key in Key)


class RecordRules(RecordValidatorBase):
    """Known key, subkey = a peer id, value signed by that peer, at most RECORD_LIMIT bytes and
    RECORD_SECONDS."""

    def __init__(self, keyring: Signer, keys: Iterable[str]) -> None:
        self._keyring = keyring
        self._keys = {DHTID.generate(source=key).to_bytes() for key in keys}

    def sign_value(self, record: DHTRecord) -> bytes:
        """The value followed by this peer's signature."""
        return bytes(record.value) + self._keyring.sign(_signed(record, record.value))

    def strip_value(self, record: DHTRecord) -> bytes:
        """The value without its signature."""
        return bytes(record.value[:-SIGNATURE])

    def validate(self, record: DHTRecord) -> bool:
        """Whether a record is allowed: see the class."""
        # Expired records are not refused here: hivemind drops them, and refuses a whole dictionary for one
        # invalid record.
        if record.key not in self._keys or not SIGNATURE < len(record.value) <= RECORD_LIMIT + SIGNATURE + 8:
            return False
        if not record.expiration_time <= time.time() + RECORD_SECONDS + SKEW_SECONDS:  # also false for NaN
            return False
        owner = owner_of(record.subkey)
        if owner is None:
            return False
        value = record.value[:-SIGNATURE]
        if not verify(owner, _signed(record, value), record.value[-SIGNATURE:]):
            return False
        try:
            MSGPackSerializer.loads(value)
        except (ValueError, TypeError):
            return False
        return True


def owner_of(subkey: bytes) -> bytes | None:
    """The Ed25519 public key (32 bytes) that owns a serialised subkey; None when it is not the id of such a
    key."""
    # msgpack's bin8 of 38 bytes: hivemind's own subkeys (`peer_id.to_bytes()`) have this form, any other
    # would be a second spelling of the same owner.
    if len(subkey) != 40 or subkey[:2] != b"\xc4\x26":
        return None
    return public_key(PeerId(base58.b58encode(subkey[2:]).decode()))


def _signed(record: DHTRecord, value: bytes) -> bytes:
    return b"swarm-record" + record.key + record.subkey + msgpack.packb(float(record.expiration_time)) + value


# --- msgpack ------------------------------------------------------------------------------------------------

_depth = threading.local()
_decode_extension = MSGPackSerializer._decode_ext_types.__func__  # type: ignore[attr-defined]


def _decode_bounded(cls: Any, code: int, content: bytes) -> Any:
    if code not in DECODE_TYPES:
        raise GuardError(f"msgpack extension of type {code}, decoded are {DECODE_TYPES}")
    depth = getattr(_depth, "value", 0)
    if depth >= DECODE_DEPTH:
        raise GuardError(f"msgpack extensions nested deeper than {DECODE_DEPTH}")
    _depth.value = depth + 1
    try:
        if code == cls._TUPLE_EXT_TYPE_CODE:
            return tuple(cls.loads(content))  # hivemind's own way out of `loads` and its limits
        return _decode_extension(cls, code, content)
    finally:
        _depth.value = depth


def _loads_bounded(cls: Any, content: bytes) -> Any:
    if len(content) > DECODE_BYTES:
        raise GuardError(f"msgpack of {len(content)} bytes, limit {DECODE_BYTES}")
    items = {"max_array_len": DECODE_ITEMS, "max_map_len": DECODE_ITEMS}
    return msgpack.unpackb(content, ext_hook=cls._decode_ext_types, raw=False, **items)


# --- budgets and slots --------------------------------------------------------------------------------------


class Slots:
    """Counts of what a peer, and all peers together, do at once, with limits."""

    def __init__(self, per_peer: int, total: int) -> None:
        self.per_peer, self.total = per_peer, total
        self._busy: Counter[Hashable] = Counter()

    def take(self, who: Hashable) -> bool:
        """Take a slot for `who`. False when a limit is reached."""
        if self._busy[who] >= self.per_peer or self._busy.total() >= self.total:
            return False
        self._busy[who] += 1
        return True

    def give(self, who: Hashable) -> None:
        """Give a slot of `who` back."""
        self._busy[who] -= 1
        if self._busy[who] <= 0:
            del self._busy[who]


# --- patched methods of hivemind ----------------------------------------------------------------------------

_budget = Budget((PEER_RATE, PEER_BURST), (ALL_RATE, ALL_BURST), PEERS_KNOWN)
_store, _find, _store_record = DHTProtocol.rpc_store, DHTProtocol.rpc_find, DictionaryDHTValue.store
_update_table = DHTProtocol.update_routing_table
_receive_protobuf, _add_handler = P2P.receive_protobuf, P2P.add_binary_stream_handler
_handle_stream, _init_id = ControlClient._handler, PeerID.__init__


def _init_id_bounded(self: PeerID, raw: bytes) -> None:
    if len(raw) > ID_LIMIT:
        raise GuardError(f"a peer's id of {len(raw)} bytes, limit {ID_LIMIT}")
    _init_id(self, raw)


async def _store_bounded(
    self: DHTProtocol, request: dht_pb2.StoreRequest, context: P2PContext
) -> dht_pb2.StoreResponse:
    count = len(request.keys)
    aligned = (
        count
        == len(request.subkeys)
        == len(request.values)
        == len(request.expiration_time)
        == len(request.in_cache)
    )
    units = count + request.ByteSize() / 1024
    fits = aligned and count <= REQUEST_KEYS and is_answered(context.remote_id)
    if not fits or not _budget.take(context.remote_id.to_bytes(), units, time.monotonic()):
        return dht_pb2.StoreResponse(store_ok=[False] * min(count, REQUEST_KEYS), peer=self.node_info)
    return await _store(self, request, context)


class Known:
    """The settings of this process's DHT node."""

    members: ClassVar[set[bytes]] = set()
    """Peers whose records go first."""
    closed = False
    """No other peer stores, finds, or becomes a neighbour that is given records: others get the time
    alone."""


def know(members: Iterable[bytes], anew: bool, closed: bool = False) -> None:
    """Keep records of these peers before others', and where it is `closed` no others'. Where it is `anew`
    earlier members are members no more."""
    if anew:
        Known.members.clear()
    Known.members.update(members)
    Known.closed = closed


def is_answered(peer: PeerID) -> bool:
    """Whether a peer's questions are, and whether it may be a neighbour."""
    return not Known.closed or peer.to_bytes() in Known.members


async def _meet_member(
    self: DHTProtocol, node_id: DHTID | None, peer: PeerID, responded: bool = True
) -> None:
    if not responded or is_answered(peer):
        await _update_table(self, node_id, peer, responded)


def _store_record_bounded(self: DictionaryDHTValue, key: Any, value: Any, expiration_time: float) -> bool:
    """A new record of a key that is full takes the place of a newcomer's, or is refused until some expire."""
    if key not in self.data and _is_full(self, key):
        self._remove_outdated()
        if _is_full(self, key):
            oldest = (
                next((one for one in self.data if one not in Known.members), None) if Known.members else None
            )
            if oldest is None:
                return False
            del self[oldest]
    return bool(_store_record(self, key, value, expiration_time))


def _is_full(kept: DictionaryDHTValue, key: Any) -> bool:
    if not Known.members or key in Known.members or len(kept.data) >= SUBKEYS:
        return len(kept.data) >= SUBKEYS
    return sum(one not in Known.members for one in kept.data) >= NEWCOMERS


async def _find_bounded(
    self: DHTProtocol, request: dht_pb2.FindRequest, context: P2PContext
) -> dht_pb2.FindResponse:
    count = len(request.keys)
    if count > REQUEST_KEYS or not _budget.take(context.remote_id.to_bytes(), count, time.monotonic()):
        return dht_pb2.FindResponse(results=[], peer=self.node_info)
    if not is_answered(context.remote_id):
        # As of an empty board: a peer without any answer takes this one for dead, and does not ask again.
        nothing = [dht_pb2.FindResult(type=dht_pb2.NOT_FOUND)] * count
        return dht_pb2.FindResponse(results=nothing, peer=self.node_info)
    return await _find(self, request, context)


async def _receive_raw_bounded(reader: asyncio.StreamReader) -> bytes:
    size = int.from_bytes(await reader.readexactly(P2P.HEADER_LEN), P2P.BYTEORDER)
    if size > FRAME_LIMIT:
        raise GuardError(f"frame of {size} bytes announced, limit {FRAME_LIMIT}")
    async with asyncio.timeout(FRAME_SECONDS):
        return await reader.readexactly(size)


async def _send_raw_whole(data: bytes, writer: asyncio.StreamWriter) -> None:
    """hivemind's writes 64 KiB at a time, each of which costs a stream's writer as much as all of them."""
    writer.write(len(data).to_bytes(P2P.HEADER_LEN, P2P.BYTEORDER))
    writer.write(data)
    await writer.drain()


async def _receive_protobuf_bounded(kind: Any, reader: asyncio.StreamReader) -> Any:
    task = asyncio.current_task()
    assert task is not None
    if getattr(task.get_coro(), "cr_code", None) is _receive_protobuf_bounded.__code__:
        # hivemind looks at this task or at the answer, whichever ends first: the end of a stream that it did
        # not look at is no unretrieved error.
        task.add_done_callback(_looked_at)
    # Not wait_for: Python 3.11's loses a cancellation that comes together with the end of the stream, and
    # hivemind cancels here.
    async with asyncio.timeout(IDLE_SECONDS):
        return await _receive_protobuf(kind, reader)


def _looked_at(task: asyncio.Task[Any]) -> None:
    if not task.cancelled():
        task.exception()


async def _begin_stream(
    self: ControlClient, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    """A stream that p2pd hands on. p2pd may die before it has named the stream, or in the middle of a
    message."""
    try:
        await _handle_stream(self, reader, writer)
    except asyncio.IncompleteReadError as error:
        log.debug("a stream ended: %s", error)
        writer.close()


async def _add_handler_bounded(
    self: P2P, name: str, handler: Callable[..., Awaitable[None]], balanced: bool = False
) -> None:
    slots = self.__dict__.setdefault("_swarm_slots", Slots(STREAMS_PER_PEER, STREAMS))

    async def bounded(info: Any, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        who = info.peer_id.to_bytes()
        if not slots.take(who):
            writer.close()
            return
        try:
            await handler(info, reader, writer)
        finally:
            slots.give(who)

    await _add_handler(self, name, bounded, balanced)


def install() -> None:
    """Put the limits into hivemind's classes. A second call changes nothing."""
    DHTProtocol.rpc_store, DHTProtocol.rpc_find = _store_bounded, _find_bounded
    DHTProtocol.update_routing_table = _meet_member
    DictionaryDHTValue.store = _store_record_bounded
    MSGPackSerializer._decode_ext_types = classmethod(_decode_bounded)
    MSGPackSerializer.loads = classmethod(_loads_bounded)
    P2P.receive_raw_data = staticmethod(_receive_raw_bounded)
    P2P.send_raw_data = staticmethod(_send_raw_whole)
    P2P.receive_protobuf = staticmethod(_receive_protobuf_bounded)
    P2P.add_binary_stream_handler = _add_handler_bounded
    ControlClient._handler, PeerID.__init__ = _begin_stream, _init_id_bounded
