"""The limits that stock hivemind lacks, each broken on purpose."""

from __future__ import annotations

import asyncio
import dataclasses
import gc
import hashlib
import os
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import base58
import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarm.frames.wire import topic
from swarm.limits import FRAME_LIMIT, ID_LIMIT, RECORD_LIMIT, RECORD_SECONDS
from swarm.membership.identity import open_key
from swarm.net.messaging import board, guard
from swarm.types import Digest

# isort: split
from hivemind.dht.protocol import DHTProtocol
from hivemind.dht.routing import DHTID, RoutingTable
from hivemind.dht.storage import DHTLocalStorage, DictionaryDHTValue
from hivemind.dht.validation import DHTRecord
from hivemind.p2p import P2P, PeerID
from hivemind.p2p.p2p_daemon_bindings.control import ControlClient, DaemonConnector
from hivemind.proto import dht_pb2, p2pd_pb2
from hivemind.utils import MSGPackSerializer
from hivemind.utils.multiaddr import Multiaddr

guard.install()
RUN = Digest(hashlib.sha256(b"guard").hexdigest())


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("keys")
    return [open_key(folder / str(i)) for i in range(2)]


MEMBER = topic(RUN, "member")


def record(
    keyring: Any, *, key: str = MEMBER, value: object = b"v", ttl: float = 60.0, subkey: Any = None
) -> DHTRecord:
    """Signed by `keyring`, as hivemind would lay it out."""
    subkey = MSGPackSerializer.dumps(base58.b58decode(keyring.me) if subkey is None else subkey)
    bare = DHTRecord(
        DHTID.generate(source=key).to_bytes(), subkey, MSGPackSerializer.dumps(value), time.time() + ttl
    )
    return dataclasses.replace(bare, value=guard.RecordRules(keyring, ()).sign_value(bare))


def test_a_record_signed_by_its_subkeys_owner_is_kept_and_its_signature_stripped(keys: Any) -> None:
    rules = guard.RecordRules(keys[0], guard.allowed_keys(RUN))
    theirs = record(keys[1])
    assert rules.validate(theirs)
    assert MSGPackSerializer.loads(rules.strip_value(theirs)) == b"v"
    assert rules.validate(record(keys[1], value=b"x" * RECORD_LIMIT))
    assert rules.validate(record(keys[1], ttl=RECORD_SECONDS + 1)), "its clock is a second ahead"


def test_my_record_of_a_clock_that_was_ahead_gives_way_to_those_of_the_right_one(keys: Any) -> None:
    """Or it outlasts them by that, and readers refuse all that lies beside it."""
    storage, rules = DHTLocalStorage(), guard.RecordRules(keys[0], guard.allowed_keys(RUN))
    protocol = SimpleNamespace(storage=storage, serializer=MSGPackSerializer, record_validator=rules)
    node, key = SimpleNamespace(protocol=protocol), DHTID.generate(source=MEMBER)
    mine, other = (base58.b58decode(keyring.me) for keyring in keys)
    theirs = record(keys[1])
    storage.store_subkey(key, other, theirs.value, theirs.expiration_time)

    def put(value: bytes, ahead: float) -> bool:
        return asyncio.run(board._put(node, (MEMBER, mine, value, time.time() + ahead + 60.0), True))

    assert put(b"old", 7200.0) and put(b"new", 0.0)
    kept = storage.get(key).value
    assert DHTProtocol._validate_dictionary(protocol, key.to_bytes(), kept), "a reader takes it"
    assert {subkey for subkey, _ in kept.items()} == {mine, other}
    assert b"new" in kept.get(mine).value


def test_records_of_the_run_pass_and_hiveminds_own_averaging_records_do_not(keys: Any) -> None:
    rules = guard.RecordRules(keys[0], guard.allowed_keys(RUN))
    assert all(rules.validate(record(keys[1], key=key)) for key in guard.allowed_keys(RUN))
    prefix = guard.averaging_prefix(RUN)
    for what in ("0b", "0b000000", "all_averagers"):
        assert not rules.validate(record(keys[1], key=f"{prefix}.{what}", value=True))


def test_foreign_subkeys_wrong_keys_long_lives_and_large_values_are_refused(keys: Any) -> None:
    rules = guard.RecordRules(keys[0], guard.allowed_keys(RUN))
    stolen = base58.b58decode(keys[0].me)
    bad = {
        "the owner of the subkey did not sign": record(keys[1], subkey=stolen),
        "not a peer id": record(keys[1], subkey="me"),
        "no subkey": record(keys[1], subkey=()),
        "not a key of the run": record(keys[1], key="something/else"),
        "lives too long": record(keys[1], ttl=RECORD_SECONDS + guard.SKEW_SECONDS + 5),
        "lives for ever": record(keys[1], ttl=float("inf")),
        "lives until nobody knows when": record(keys[1], ttl=float("nan")),
        "too large": record(keys[1], value=b"x" * (RECORD_LIMIT + 64)),
        "without a signature": dataclasses.replace(record(keys[1]), value=b"v"),
    }
    assert [why for why, wrong in bad.items() if rules.validate(wrong)] == []


def test_a_peer_owns_one_subkey_however_its_id_could_be_written(monkeypatch: pytest.MonkeyPatch) -> None:
    identity = base58.b58decode(_KEYRING.me)
    assert guard.owner_of(b"\xc4\x26" + identity) == _KEYRING.public
    for other in (b"\xd9\x26" + identity, b"\xc5\x00\x26" + identity, identity):
        assert guard.owner_of(other) is None
    monkeypatch.setattr(guard, "base58", None)
    assert guard.owner_of(b"\xc4\x26" + bytes(1 << 20)) is None, "it is not even converted"


@given(position=st.integers(0, 200), bit=st.integers(0, 7))
def test_a_changed_bit_of_value_subkey_or_expiry_breaks_the_signature(position: int, bit: int) -> None:
    keyring = _KEYRING
    rules = guard.RecordRules(keyring, guard.allowed_keys(RUN))
    good = record(keyring)
    fields = {"value": good.value, "subkey": good.subkey}
    for name, content in fields.items():
        changed = bytearray(content)
        changed[position % len(content)] ^= 1 << bit
        assert not rules.validate(dataclasses.replace(good, **{name: bytes(changed)}))
    assert not rules.validate(dataclasses.replace(good, expiration_time=good.expiration_time + 1 + position))


def _make_keyring() -> Any:
    import tempfile
    from pathlib import Path

    with tempfile.TemporaryDirectory() as folder:
        return open_key(Path(folder) / "key")


_KEYRING = _make_keyring()


def test_msgpack_is_bounded_in_depth_size_and_items() -> None:
    nested: object = ()
    for _ in range(guard.DECODE_DEPTH):
        nested = (nested,)
    with pytest.raises(ValueError, match="nested"):
        MSGPackSerializer.loads(MSGPackSerializer.dumps(nested))
    with pytest.raises(ValueError, match="limit"):
        MSGPackSerializer.loads(MSGPackSerializer.dumps(b"x" * (guard.DECODE_BYTES + 1)))
    with pytest.raises(ValueError, match="max_array_len"):
        MSGPackSerializer.loads(msgpack.packb([0] * (guard.DECODE_ITEMS + 1)))
    with pytest.raises(ValueError, match="max_array_len"):
        inner = msgpack.packb([0] * (guard.DECODE_ITEMS + 1))
        MSGPackSerializer.loads(msgpack.packb(msgpack.ExtType(0x40, inner)))
    assert MSGPackSerializer.loads(MSGPackSerializer.dumps({"a": (1, [2.5, b"x"], ("y",))})) == {
        "a": (1, [2.5, b"x"], ("y",))
    }


def test_an_id_is_bounded_before_it_is_written_in_base58() -> None:
    assert PeerID(bytes(ID_LIMIT)).to_bytes() == bytes(ID_LIMIT)
    with pytest.raises(guard.GuardError, match="limit 64"):
        PeerID(bytes(ID_LIMIT + 1))
    guard.install()
    assert PeerID.from_base58(_KEYRING.me).to_base58() == _KEYRING.me, "once more, and nothing has changed"


def test_msgpack_at_its_limits_is_read_again_and_again() -> None:
    nested: object = ()
    for _ in range(guard.DECODE_DEPTH - 1):
        nested = (nested,)
    numbers, names = [0] * guard.DECODE_ITEMS, {str(k): 0 for k in range(guard.DECODE_ITEMS)}
    for whole in (nested, nested, numbers, names):
        assert MSGPackSerializer.loads(MSGPackSerializer.dumps(whole)) == whole
    full = msgpack.packb(b"x" * (guard.DECODE_BYTES - 5))
    assert len(full) == guard.DECODE_BYTES and len(MSGPackSerializer.loads(full)) == len(full) - 5
    with pytest.raises(ValueError, match="max_map_len"):
        MSGPackSerializer.loads(msgpack.packb(names | {"one more": 0}))


@given(st.binary(max_size=300))
def test_arbitrary_bytes_never_break_the_rules(content: bytes) -> None:
    rules = guard.RecordRules(_KEYRING, guard.allowed_keys(RUN))
    good = record(_KEYRING)
    assert not rules.validate(dataclasses.replace(good, value=content))
    assert not rules.validate(dataclasses.replace(good, subkey=content))


def signed(content: bytes) -> DHTRecord:
    """A record of a peer that signs whatever `content` is."""
    bare = dataclasses.replace(record(_KEYRING), value=content)
    return dataclasses.replace(bare, value=guard.RecordRules(_KEYRING, ()).sign_value(bare))


DESCRIBED = {"dtype": None, "layout": None, "device_type": "none", "device_index": None, "size": [1]}


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xc1",
        b"\xa1\xff",
        msgpack.packb([1]) + b"x",
        msgpack.packb(msgpack.ExtType(0x50, b"\x05")),
        msgpack.packb(msgpack.ExtType(0x50, msgpack.packb([1, 1.0, [[[], b"v", 2e9]]]))),
        msgpack.packb(msgpack.ExtType(0x51, msgpack.packb(DESCRIBED))),
        msgpack.packb(msgpack.ExtType(0x07, b"")),
        b"\x91" * 2000,
    ],
)
def test_a_signed_record_whose_value_cannot_be_read_is_refused(content: bytes) -> None:
    rules = guard.RecordRules(_KEYRING, guard.allowed_keys(RUN))
    assert rules.validate(signed(msgpack.packb(1)))
    assert not rules.validate(signed(content))


extensions = st.deferred(lambda: st.builds(msgpack.ExtType, st.integers(0, 127) | st.just(0x50), packed))
packed = st.deferred(
    lambda: st.recursive(
        st.none()
        | st.booleans()
        | st.integers(-9, 2**63)
        | st.floats()
        | st.text()
        | st.binary()
        | extensions,
        lambda inner: (
            st.lists(inner, max_size=4) | st.dictionaries(st.text() | st.binary(), inner, max_size=3)
        ),
        max_leaves=8,
    ).map(msgpack.packb)
)


@given(packed | st.binary(max_size=40))
def test_whatever_a_peer_signs_is_good_or_bad_and_ends_nothing(content: bytes) -> None:
    good = guard.RecordRules(_KEYRING, guard.allowed_keys(RUN)).validate(signed(content))
    try:
        MSGPackSerializer.loads(content)
    except Exception:
        assert not good
    else:
        assert good


def test_an_oversized_frame_is_refused_at_its_header() -> None:
    async def body(size: int) -> bytes:
        reader = asyncio.StreamReader()
        reader.feed_data(size.to_bytes(P2P.HEADER_LEN, P2P.BYTEORDER) + b"x" * min(size, 8))
        reader.feed_eof()
        return await P2P.receive_raw_data(reader)

    assert asyncio.run(body(0)) == b""
    with pytest.raises(asyncio.IncompleteReadError):
        asyncio.run(body(FRAME_LIMIT))
    with pytest.raises(guard.GuardError, match="announced"):
        asyncio.run(body(FRAME_LIMIT + 1))
    assert asyncio.run(body(8)) == b"x" * 8


def test_a_stream_that_stops_in_the_middle_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard, "FRAME_SECONDS", 0.05)
    monkeypatch.setattr(guard, "IDLE_SECONDS", 0.05)

    async def body(sent: bytes, receive: Any) -> None:
        reader = asyncio.StreamReader()
        reader.feed_data(sent)
        await receive(reader)

    header = (8).to_bytes(P2P.HEADER_LEN, P2P.BYTEORDER)
    with pytest.raises(TimeoutError):
        asyncio.run(body(header, P2P.receive_raw_data))
    with pytest.raises(TimeoutError):
        asyncio.run(body(b"", lambda reader: P2P.receive_protobuf(dht_pb2.PingRequest, reader)))


Handled = Callable[[ControlClient, Path], Awaitable[None]]


def told_of(body: Handled, folder: Path) -> list[str]:
    """What asyncio would have printed while streams came in, as p2pd hands them on."""
    told: list[str] = []

    async def main() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(str(context)))
        address = Multiaddr(f"/unix{folder}/streams")
        client = ControlClient(DaemonConnector(), address, _initialized_with_create=True)
        async with client.listen():
            await body(client, folder / "streams")
        gc.collect()
        await asyncio.sleep(0)

    asyncio.run(main())
    return told


@pytest.mark.parametrize("sent", [b"", b"\x08", b"\x08\x0a\x02"], ids=["nothing", "a length", "a part"])
def test_a_stream_whose_beginning_never_comes_ends_without_a_traceback(sent: bytes, tmp_path: Path) -> None:
    """p2pd was killed between the connection and the stream's header."""

    async def body(_: ControlClient, path: Path) -> None:
        reader, writer = await asyncio.open_unix_connection(str(path))
        writer.write(sent)
        writer.write_eof()
        assert await reader.read() == b""
        writer.close()

    assert told_of(body, tmp_path) == []


def test_an_error_of_a_stream_that_did_begin_is_told(tmp_path: Path) -> None:
    async def body(client: ControlClient, path: Path) -> None:
        async def handler(*_: Any) -> None:
            raise ValueError("a bug of ours")

        client.handlers["spoken"] = handler
        info = p2pd_pb2.StreamInfo(peer=b"peer", addr=b"", proto="spoken").SerializeToString()
        reader, writer = await asyncio.open_unix_connection(str(path))
        writer.write(bytes([len(info)]) + info)
        assert await reader.read() == b""
        writer.close()

    told = told_of(body, tmp_path)
    assert len(told) == 1 and "a bug of ours" in told[0]


def test_a_request_that_is_cut_off_as_its_answer_ends_leaves_no_traceback(tmp_path: Path) -> None:
    """hivemind looks at one of the two."""

    async def body(_: ControlClient, path: Path) -> None:
        reader = asyncio.StreamReader()
        receiving = asyncio.create_task(P2P.receive_protobuf(dht_pb2.PingRequest, reader))
        reader.feed_eof()
        await asyncio.wait([receiving])

    assert told_of(body, tmp_path) == []


def test_a_peer_and_all_peers_have_a_budget_and_the_table_of_peers_is_bounded() -> None:
    budget = guard.Budget((1.0, 10.0), (0.0, 25.0), known=4)
    assert [budget.take("a", 4, now=0.0) for _ in range(3)] == [True, True, False]
    assert budget.take("a", 4, now=2.0)  # two units had come back
    assert budget.take("b", 10, now=2.0)
    assert not budget.take("c", 10, now=2.0)  # everyone together
    assert budget.take("c", 3, now=2.0), "to the last unit"
    for stranger in range(100):
        budget.take(stranger, 1, now=3.0)
    assert len(budget._levels) == 4


def test_of_the_peers_with_a_budget_the_longest_silent_is_forgotten_first() -> None:
    budget = guard.Budget((0.0, 10.0), (0.0, 1000.0), known=2)
    assert budget.take("flooder", 10, now=0.0) and budget.take("silent", 10, now=1.0)
    assert not budget.take("flooder", 1, now=2.0)
    assert budget.take("new", 1, now=3.0)
    assert not budget.take("flooder", 1, now=4.0)
    assert budget.take("silent", 10, now=5.0), "it is as good as new"


def test_slots_are_bounded_for_one_and_for_all() -> None:
    slots = guard.Slots(per_peer=2, total=3)
    assert [slots.take(who) for who in "aaabc"] == [True, True, False, True, False]
    slots.give("a")
    assert slots.take("c") and not slots.take("c"), "one place came back"
    for who in "abc":
        slots.give(who)
    assert not slots._busy, "strangers come and go: nothing is kept of them"


async def accepting(handler: Any) -> Any:
    """What a node calls for a stream whose handler is this one."""
    handlers: dict[str, Any] = {}

    async def stream_handler(name: str, handle: Any, _balanced: bool) -> None:
        handlers[name] = handle

    p2p = P2P()
    p2p._listen_task = SimpleNamespace(done=lambda: True, cancel=lambda: None)
    p2p._client = SimpleNamespace(stream_handler=stream_handler, close=lambda: None)
    p2p._client_listen_maddr = {"unix": "/nonexistent"}
    await p2p.add_binary_stream_handler("x", handler)
    return handlers["x"]


def test_too_many_streams_of_one_peer_are_closed_at_once() -> None:
    async def body() -> None:
        release, served = asyncio.Event(), list[None]()

        async def wait(_info: Any, _reader: Any, _writer: Any) -> None:
            served.append(None)
            await release.wait()

        handle = await accepting(wait)
        info = SimpleNamespace(peer_id=SimpleNamespace(to_bytes=lambda: b"peer"))
        closed: list[int] = []
        async with asyncio.TaskGroup() as tasks:
            for i in range(guard.STREAMS_PER_PEER + 3):
                tasks.create_task(handle(info, None, SimpleNamespace(close=lambda i=i: closed.append(i))))
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            assert closed == [guard.STREAMS_PER_PEER + i for i in range(3)]
            assert len(served) == guard.STREAMS_PER_PEER
            release.set()

    asyncio.run(body())


def protocol(keyring: Any) -> Any:
    """The part of a DHT node that answers."""
    it = DHTProtocol(_initialized_with_create=True)
    it.storage, it.cache, it.serializer = DHTLocalStorage(), DHTLocalStorage(), MSGPackSerializer
    it.routing_table, it.bucket_size = RoutingTable(DHTID.generate(), 20, 5), 20
    it.record_validator = guard.RecordRules(keyring, guard.allowed_keys(RUN))
    it.node_info = dht_pb2.NodeInfo()
    it.rpc_ping = lambda *_: asyncio.sleep(0)
    return it


def asker(name: bytes) -> Any:
    return SimpleNamespace(remote_id=SimpleNamespace(to_bytes=lambda: name))


def test_questions_beyond_the_limits_get_no_answer(keys: Any) -> None:
    def request(count: int) -> Any:
        return dht_pb2.FindRequest(keys=[DHTID.generate().to_bytes()] * count, peer=dht_pb2.NodeInfo())

    async def found(count: int, who: bytes) -> int:
        return len((await DHTProtocol.rpc_find(protocol(keys[0]), request(count), asker(who))).results)

    async def body() -> None:
        assert await found(guard.REQUEST_KEYS, b"curious") == guard.REQUEST_KEYS
        assert await found(guard.REQUEST_KEYS + 1, b"greedy") == 0
        answers = [await found(100, b"often") for _ in range(30)]
        assert answers[0] == 100 and answers[-1] == 0

    asyncio.run(body())


def test_a_store_request_is_refused_before_its_records_are_looked_at(keys: Any) -> None:
    async def stored(request: Any) -> list[bool]:
        it = protocol(keys[0])
        it.record_validator = None  # nothing else refuses
        return list((await DHTProtocol.rpc_store(it, request, asker(os.urandom(8)))).store_ok)

    def request(count: int, value: bytes = b"v") -> Any:
        expires = [time.time() + 60] * count
        names = [DHTID.generate().to_bytes() for _ in range(count)]
        return dht_pb2.StoreRequest(
            keys=names,
            subkeys=[MSGPackSerializer.dumps(b"mine")] * count,
            values=[value] * count,
            expiration_time=expires,
            in_cache=[False] * count,
            peer=dht_pb2.NodeInfo(),
        )

    async def body() -> None:
        assert await stored(request(guard.REQUEST_KEYS)) == [True] * guard.REQUEST_KEYS
        assert await stored(request(guard.REQUEST_KEYS + 1)) == [False] * guard.REQUEST_KEYS
        for column in ("subkeys", "values", "expiration_time", "in_cache"):
            ragged = request(2)
            del getattr(ragged, column)[1:]
            assert await stored(ragged) == [False, False], column
        budget = int(guard.PEER_BURST) * 1024
        assert await stored(request(1, bytes(budget - 4096))) == [True]
        assert await stored(request(1, bytes(budget))) == [False]

    asyncio.run(body())


NAMES = (b"member", b"stranger")


def test_a_closed_board_answers_members_alone(keys: Any) -> None:
    one, (member, stranger) = record(keys[1]), (SimpleNamespace(remote_id=PeerID(name)) for name in NAMES)

    async def seen(it: Any, who: Any) -> list[int]:
        """Kinds of what `who` finds."""
        request = dht_pb2.FindRequest(keys=[one.key], peer=dht_pb2.NodeInfo())
        return [result.type for result in (await DHTProtocol.rpc_find(it, request, who)).results]

    async def body() -> None:
        it = protocol(keys[0])
        for who in (member, stranger):
            place = DHTID.generate()
            await DHTProtocol.update_routing_table(it, place, who.remote_id)
            assert (place in it.routing_table) is (who is member), "only members are neighbours"
        request = dht_pb2.StoreRequest(
            keys=[one.key],
            subkeys=[one.subkey],
            values=[one.value],
            expiration_time=[one.expiration_time],
            in_cache=[False],
            peer=dht_pb2.NodeInfo(),
        )
        assert list((await DHTProtocol.rpc_store(it, request, stranger)).store_ok) == [False]
        assert list((await DHTProtocol.rpc_store(it, request, member)).store_ok) == [True]
        assert await seen(it, stranger) == [dht_pb2.NOT_FOUND]
        assert await seen(it, member) == [dht_pb2.FOUND_DICTIONARY]

    guard.know(NAMES[:1], anew=True, closed=True)
    try:
        asyncio.run(body())
    finally:
        guard.know((), anew=True)


def test_a_stream_gives_its_place_back_however_it_ends() -> None:
    async def body() -> None:
        served: list[bytes] = []

        async def fail(info: Any, _reader: Any, _writer: Any) -> None:
            served.append(info.peer_id.to_bytes())
            raise ConnectionResetError

        handle = await accepting(fail)
        info = SimpleNamespace(peer_id=SimpleNamespace(to_bytes=lambda: b"peer"))
        for _ in range(guard.STREAMS_PER_PEER + 1):
            with pytest.raises(ConnectionResetError):
                await handle(info, None, None)
        assert len(served) == guard.STREAMS_PER_PEER + 1

    asyncio.run(body())


def test_store_requests_beyond_the_limits_are_refused(keys: Any) -> None:
    def request(count: int) -> Any:
        one = record(keys[1])
        columns: dict[str, Any] = {
            "keys": one.key,
            "subkeys": one.subkey,
            "values": one.value,
            "in_cache": False,
        }
        columns["expiration_time"] = one.expiration_time
        return dht_pb2.StoreRequest(
            **{name: [value] * count for name, value in columns.items()}, peer=dht_pb2.NodeInfo()
        )

    async def body() -> None:
        context = SimpleNamespace(remote_id=SimpleNamespace(to_bytes=lambda: os.urandom(8)))
        assert list((await DHTProtocol.rpc_store(protocol(keys[0]), request(1), context)).store_ok) == [True]
        many = await DHTProtocol.rpc_store(protocol(keys[0]), request(guard.REQUEST_KEYS + 1), context)
        assert not any(many.store_ok)
        ragged = request(2)
        del ragged.subkeys[1:]
        assert not any((await DHTProtocol.rpc_store(protocol(keys[0]), ragged, context)).store_ok)
        same = asker(b"flooder")
        results = [
            any((await DHTProtocol.rpc_store(protocol(keys[0]), request(100), same)).store_ok)
            for _ in range(30)
        ]
        assert results[0] and not results[-1]

    asyncio.run(body())


def test_a_key_holds_a_bounded_number_of_records() -> None:
    full = DictionaryDHTValue()
    expires = time.time() + 60
    kept = [full.store(i, b"", expires) for i in range(guard.SUBKEYS + 5)]
    assert sum(kept) == guard.SUBKEYS == len(full)
    assert full.store(0, b"newer", expires + 1)


@pytest.fixture
def members() -> Iterator[list[int]]:
    """Peers that this process's node knows as members."""
    known = list(range(20))
    guard.know(known, anew=True)  # type: ignore[arg-type]
    yield known
    guard.know((), anew=True)


def test_a_flood_of_made_up_records_keeps_no_members_record_out_and_lets_newcomers_in(
    members: list[int],
) -> None:
    kept, expires = DictionaryDHTValue(), time.time() + 60
    for flood in range(1000, 2000):
        assert kept.store(flood, b"", expires), "the newest newcomer is in"
    assert len(kept) == guard.NEWCOMERS and 1999 in kept and 1000 not in kept
    assert all(kept.store(member, b"", expires) for member in members)
    for flood in range(2000, 2100):
        kept.store(flood, b"", expires)
    assert all(member in kept for member in members)
    assert len(kept) == guard.NEWCOMERS + len(members)


def test_where_members_fill_a_key_the_last_newcomers_give_way(members: list[int]) -> None:
    guard.know(range(guard.SUBKEYS + 1), anew=True)  # type: ignore[arg-type]
    kept, expires = DictionaryDHTValue(), time.time() + 60
    assert kept.store(10**6, b"", expires)
    assert all(kept.store(member, b"", expires) for member in range(guard.SUBKEYS))
    assert 10**6 not in kept and not kept.store(10**6, b"", expires)
    assert not kept.store(guard.SUBKEYS, b"", expires) and len(kept) == guard.SUBKEYS


def test_a_full_key_takes_new_records_once_old_ones_have_expired() -> None:
    full = DictionaryDHTValue()
    with full.freeze():  # hivemind takes no record that has expired
        for i in range(guard.SUBKEYS):
            full.store(i, b"", time.time() - 60)
    assert full.store("new", b"", time.time() + 60) and len(full) == 1
