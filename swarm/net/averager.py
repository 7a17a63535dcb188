"""Averaging with the other learners: the Averager port over hivemind, in a process of its own, under supervision.

    average() -> Order ----pipe----> averager process: matchmaking -> butterfly all-reduce -> shared buffer -> Ended
         ^        <-- Ask (DHT) ---        |                                  (float32, flat, one per peer)
         +-------- kill -9 and replace <---+ no answer by the deadline, or the process is gone

In come a version, tensors, a weight and the peers that may take part; out comes the weighted mean with the same bytes at every
member, or None, or RoundLost. Invariants: the deadline always holds; tensors change only after a complete round; who is not
invited is refused at the join, ignored in matchmaking and not served; members of a group all invited each other.

What differs from stock hivemind 1.1.12, and why:
  * Group bits carry the version, so that learners of two versions never meet; the announcements are checked as well.
  * Reducers send averages, not differences: all members end with the same bytes. The first part that is lost, misshapen or not
    finite breaks the round at its reducer for all of its senders, instead of giving each of them another result.
  * A weight is what a member announced while the group formed, so that all reducers use the same one.
  * The process shares no lock with the peer: hivemind's MPFuture takes locks of all its processes, and a process that is frozen
    or killed while it holds one (or while the DHT process talks to it) takes the whole peer along. So it asks its parent for
    DHT look-ups through a pipe, and answers there. Of DecentralizedAverager the protocol is used, not the process.
  * p2pd keeps the stream handlers of a dead process and refuses new ones: the next process removes them by its address.

Not handled: that all members *apply* the same average (a member may die after it sent its parts): releases settle that.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import gc
import hashlib
import logging
import math
import mmap
import multiprocessing
import os
import signal
import stat
import sys
import threading
import traceback
from collections.abc import Awaitable, Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any, AsyncIterator, TypeVar  # noqa: UP035 (hivemind reads the hints of calls, and knows this one only)

import msgspec
import numpy as np
import torch
import uvloop
from hivemind import DHT
from hivemind.averaging import DecentralizedAverager
from hivemind.averaging.allreduce import AllreduceException, AllReduceRunner
from hivemind.averaging.group_info import GroupInfo
from hivemind.averaging.key_manager import GroupKeyManager
from hivemind.averaging.matchmaking import Matchmaking
from hivemind.compression import Float16Compression, NoCompression, serialize_torch_tensor
from hivemind.p2p import P2P, P2PContext, PeerID
from hivemind.p2p.p2p_daemon_bindings.utils import ControlFailure
from hivemind.proto import averaging_pb2, runtime_pb2
from hivemind.utils import get_dht_time
from hivemind.utils.asyncio import aiter_with_timeout, attach_event_on_finished
from hivemind.utils.multiaddr import Multiaddr

from swarm.config import Averaging
from swarm.net.ports import Average, RoundLost
from swarm.types import PeerId

T = TypeVar("T")

VERSIONS = 64
# Group keys are a closed list that DHT nodes allow: 6 bits of the version. Announcements carry the version in full.
MAX_WEIGHT = 1e6
# A weight is a number of groups; more than a million in one round is a lie.
MAX_ANNOUNCEMENT = 16 << 10
# 8 bytes for each invited peer: room for two thousand learners.
START = 20.0
# Seconds until a new averager process must be ready; 0.2 is usual.
MARGIN = 0.3
# Seconds before the deadline when a round ends by itself, so that a slow one costs a round and not a process.
POLL = 0.03
# Seconds between two look-ups of the others while matching; hivemind has no pause there and burns a core.
LEAVE = 1.0
# Seconds for a process to take its handlers back when it leaves; then it is killed.
STALE = 8
# Addresses of dead processes that are remembered: one would do unless starts fail in a row.
PDEATHSIG = 1
_CODECS = {"float16": (Float16Compression, np.float16), "none": (NoCompression, np.float32)}


# -- what goes through the pipe ---------------------------------------------------------------------------------------


class Message(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Between a peer and its averager process."""


class Order(Message):
    version: int
    weight: float
    peers: tuple[str, ...]
    seconds: float
    """Until the deadline."""


class Leave(Message):
    pass


class Found(Message):
    """Answer to Ask: who declared itself under the key, until when. A declaration's answer is empty."""

    number: int
    peers: tuple[tuple[bytes, float], ...]


class Listening(Message):
    """The process's address at p2pd: its handlers are removed by it when it is dead."""

    address: str


class Ready(Message):
    me: str


class Ask(Message):
    """DHT look-up of a group key, or my declaration under it when `subkey` is set."""

    number: int
    key: str
    subkey: bytes = b""
    looking: bool = False
    expires: float = 0.0


class Ended(Message):
    members: tuple[str, ...]
    """Empty: nobody came."""
    lost: str
    """Why the round was lost; empty when it was not."""


_FromParent = Order | Leave | Found
_FromChild = Listening | Ready | Ask | Ended
_encode = msgspec.msgpack.encode


class Announcement(msgspec.Struct, frozen=True):
    """What a learner tells a group that forms (hivemind's `gather`)."""

    v: int
    weight: float
    dial_only: bool
    invited: tuple[bytes, ...]
    """Tags of those it averages with, itself included."""


def _read_announcement(raw: bytes) -> Announcement:
    """Raises AllreduceException when it is not to be believed."""
    if len(raw) > MAX_ANNOUNCEMENT:
        raise AllreduceException(f"an announcement of {len(raw)} bytes, at most {MAX_ANNOUNCEMENT} are read")
    try:
        told = msgspec.msgpack.decode(raw, type=Announcement)
    except msgspec.DecodeError as error:
        raise AllreduceException(f"an announcement cannot be read: {error}") from error
    if not (math.isfinite(told.weight) and 0 < told.weight <= MAX_WEIGHT):
        raise AllreduceException(f"a member announced the weight {told.weight}, which is not in (0, {MAX_WEIGHT:g}]")
    return told


def _tag(peer: PeerID) -> bytes:
    return hashlib.blake2b(peer.to_bytes(), digest_size=8).digest()


# -- in the averager process: who takes part -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Step:
    """What hivemind's matchmaking reads of a StepControl (which is an MPFuture in shared memory)."""

    scheduled_time: float
    deadline: float
    data_for_gather: bytes

    def get_timeout(self) -> float:
        return max(0.0, self.deadline - float(get_dht_time()))


class Keys(GroupKeyManager):  # type: ignore[misc]
    """Declares me and finds the invited, through the parent's DHT."""

    def __init__(self, ask: Callable[..., Awaitable[Found]], prefix: str, me: PeerID) -> None:
        self.prefix, self.peer_id, self.group_bits, self.target_group_size = prefix, me, "", None
        self.invited: frozenset[PeerID] = frozenset()
        self.seen: list[tuple[PeerID, float]] = []
        self._ask = ask

    async def declare_averager(
        self, group_key: str, peer_id: PeerID, expiration_time: float, looking_for_group: bool = True
    ) -> bool:
        expires = expiration_time if looking_for_group else float(np.nextafter(expiration_time, math.inf))
        await self._ask(key=group_key, subkey=peer_id.to_bytes(), looking=looking_for_group, expires=expires)
        return True

    async def get_averagers(self, group_key: str, only_active: bool) -> list[tuple[PeerID, float]]:
        found = [(PeerID(raw), expires) for raw, expires in (await self._ask(key=group_key)).peers]
        found = [(peer, expires) for peer, expires in found if peer in self.invited]
        if found == self.seen:
            await asyncio.sleep(POLL)
        self.seen = found
        return found

    async def update_key_on_group_assembled(self, group_info: GroupInfo) -> None:
        """The key follows from the version alone."""


class Match(Matchmaking):  # type: ignore[misc]
    """hivemind's matchmaking among the invited, for one version and one size at a time."""

    announcement: Announcement

    def prepare(self, order: Order, announcement: Announcement) -> None:
        self.announcement = announcement
        self.target_group_size = len(order.peers) + 1
        self.group_key_manager.group_bits = format(order.version % VERSIONS, "06b")
        self.group_key_manager.invited = frozenset(map(PeerID.from_base58, order.peers))

    @property
    def lonely(self) -> bool:
        """Nobody here and nobody on the way; a group that is formed counts while the search still takes its declaration back."""
        busy = self.assembled_group.done() or self.lock_request_join_group.locked()
        return not busy and not self.current_followers and self.current_leader is None

    async def _request_join_group(self, leader: PeerID) -> GroupInfo | None:
        group = await super()._request_join_group(leader)
        if (task := asyncio.current_task()) is not None and task.cancelling():
            raise asyncio.CancelledError  # a wait_for of hivemind's swallowed it: the search would end at the round's deadline only
        return group

    def _check_reasons_to_reject(
        self, request: averaging_pb2.JoinRequest, context: P2PContext
    ) -> averaging_pb2.MessageFromLeader | None:
        invited = self.group_key_manager.invited
        if context.remote_id not in invited:
            return averaging_pb2.MessageFromLeader(code=averaging_pb2.PROTOCOL_VIOLATION)
        reason = super()._check_reasons_to_reject(request, context)
        if reason is not None:
            return reason
        try:
            told = _read_announcement(request.gather)
            others = [_read_announcement(follower.gather) for follower in self.current_followers.values()]
        except AllreduceException:
            return averaging_pb2.MessageFromLeader(code=averaging_pb2.PROTOCOL_VIOLATION)
        if told.v != self.announcement.v:
            return averaging_pb2.MessageFromLeader(code=averaging_pb2.BAD_GROUP_KEY)
        here = {_tag(peer) for peer in (self.peer_id, *self.current_followers)}
        if not here <= set(told.invited) or any(_tag(context.remote_id) not in other.invited for other in others):
            return averaging_pb2.MessageFromLeader(code=averaging_pb2.GROUP_IS_FULL)
        return None


# -- in the averager process: the mean -----------------------------------------------------------------------------------


class Runner(AllReduceRunner):  # type: ignore[misc]
    """Butterfly all-reduce that gives all members the same bytes, or breaks."""

    def __init__(self, *, weights: dict[PeerID, float], codec: str, **kwargs: Any) -> None:
        compression, self._dtype = _CODECS[codec]
        super().__init__(weight=1.0, compression=compression(), **kwargs)
        self.weights, self.broken, self.cut = weights, "", asyncio.Event()
        self.tensor_part_container.return_deltas = False
        self._codec = compression.compression_type
        self._shapes = [[part.shape for part, _ in parts] for parts in self.tensor_part_container._input_parts_by_peer]
        self._future.add_done_callback(lambda future: future.cancelled() or future.exception())  # `broken` tells

    def screen_own(self) -> None:
        if not all(bool(torch.isfinite(tensor).all()) for tensor in self.tensor_part_container.local_tensors):
            raise AllreduceException("my own tensors are not finite")

    async def collect(self) -> list[torch.Tensor]:
        """The means. hivemind's iterator misses an end that comes while it does not wait, so the break is watched here."""

        async def means() -> list[torch.Tensor]:
            async with contextlib.aclosing(self.run()) as parts:
                return [mean async for mean in parts]

        loop = asyncio.get_running_loop()
        work, cut = loop.create_task(means()), loop.create_task(self.cut.wait())
        try:
            await asyncio.wait({work, cut}, return_when=asyncio.FIRST_COMPLETED)
            if self.broken:
                raise AllreduceException(self.broken)
            return work.result()
        finally:
            work.cancel()
            cut.cancel()
            await asyncio.wait({work, cut})

    def _break(self, why: str) -> None:
        if not self.broken:
            self.broken = why
            self.finalize(cancel=True)
            self.cut.set()

    def _pack(self, part: torch.Tensor) -> runtime_pb2.Tensor:
        return serialize_torch_tensor(part, self._codec)

    def _unpack(self, packed: runtime_pb2.Tensor, shape: torch.Size) -> torch.Tensor:
        """Sizes are compared before anything is allocated; hivemind's own reader believes the wire."""
        size = math.prod(shape) * np.dtype(self._dtype).itemsize
        if packed.compression != self._codec or tuple(packed.size) != tuple(shape) or len(packed.buffer) != size:
            raise AllreduceException(f"a part of {len(packed.buffer)} bytes came where {size} of shape {tuple(shape)} belong")
        part = torch.from_numpy(np.frombuffer(packed.buffer, dtype=self._dtype).astype(np.float32)).reshape(shape)
        if not bool(torch.isfinite(part).all()):
            raise AllreduceException("a part is not finite")
        return part

    async def _communicate_with_peer(self, peer_id: PeerID) -> None:
        index = self.ordered_peer_ids.index(peer_id)
        try:
            await (self._reduce_own(index) if peer_id == self.peer_id else self._exchange(peer_id, index))
        except Exception as error:
            self._break(f"lost the parts of {peer_id}: {error or type(error).__name__}")
            raise

    async def _reduce_own(self, index: int) -> None:
        sender = self.sender_peer_ids.index(self.peer_id)
        for number, part in enumerate(self.parts_for_local_averaging):
            mean = await self._add(sender, number, part)
            self.tensor_part_container.register_processed_part(index, number, self._unpack(self._pack(mean), part.shape))

    async def _exchange(self, peer_id: PeerID, index: int) -> None:
        sent, shapes, number = asyncio.Event(), self._shapes[index], 0
        parts = attach_event_on_finished(self._generate_input_for_peer(index), sent)
        stream = await self._get_peer_stub(peer_id).rpc_aggregate_part(parts)
        if self.should_delay_results(self.peer_id):
            await sent.wait()
        async for message in aiter_with_timeout(stream, self.reducer_timeout):
            if message.code != averaging_pb2.AVERAGED_PART or number >= len(shapes):
                raise AllreduceException(f"it sent {averaging_pb2.MessageCode.Name(message.code)}")
            part = await asyncio.get_running_loop().run_in_executor(None, self._unpack, message.tensor_part, shapes[number])
            self.tensor_part_container.register_processed_part(index, number, part)
            number += 1
        if number != len(shapes):
            raise AllreduceException(f"it sent {number} of {len(shapes)} parts")

    async def _add(self, sender: int, number: int, part: torch.Tensor) -> torch.Tensor:
        try:
            weight = self.weights[self.sender_peer_ids[sender]]
            mean: torch.Tensor = await self.tensor_part_reducer.accumulate_part(sender, number, part, weight=weight)
        except asyncio.CancelledError:
            if self.broken:
                raise AllreduceException(self.broken) from None
            raise
        if self.broken:
            raise AllreduceException(self.broken)
        return mean

    async def _accumulate_parts_streaming(
        self, stream: AsyncIterator[averaging_pb2.AveragingData], sender_index: int
    ) -> AsyncIterator[averaging_pb2.AveragingData]:
        number, loop, shapes = 0, asyncio.get_running_loop(), self.tensor_part_reducer.part_shapes
        async for message in stream:
            if number >= len(shapes):
                raise AllreduceException("it sent more parts than belong to me")
            part = await loop.run_in_executor(None, self._unpack, message.tensor_part, shapes[number])
            mean = await self._add(sender_index, number, part)
            number += 1
            packed = await loop.run_in_executor(None, self._pack, mean)
            yield averaging_pb2.AveragingData(code=averaging_pb2.AVERAGED_PART, tensor_part=packed)
        if number != len(shapes):
            raise AllreduceException(f"it sent {number} of {len(shapes)} parts")

    async def _ban_sender(self, peer_id: PeerID) -> None:
        """hivemind goes on without a lost sender, and each member gets another mean; here the round ends for all."""
        received = self.tensor_part_reducer.num_parts_received[self.sender_peer_ids.index(peer_id)]
        if received < self.tensor_part_reducer.num_parts:
            self._break(f"lost {peer_id} after {received} of {self.tensor_part_reducer.num_parts} parts")


@dataclass(frozen=True, slots=True)
class Setup:
    """What a new averager process needs to know."""

    prefix: str
    settings: Averaging
    buffer: torch.Tensor
    daemon: str
    """p2pd's control address."""
    dial_only: bool
    stale: tuple[str, ...]
    """Addresses of dead averager processes at this p2pd."""


class Rounds(DecentralizedAverager):  # type: ignore[misc]
    """The protocol half of DecentralizedAverager (its calls, its groups), for one round at a time."""

    _rpc_handlers: Any = None  # hivemind caches these two on the class: a subclass would serve its parent's
    _stub_type = None
    _parent_pid = -1  # read by its __del__; its __init__ makes a process, futures and shared memory, none of which is wanted

    def __init__(self, setup: Setup, send: Callable[[_FromChild], None]) -> None:
        self._setup, self._send, self.prefix = setup, send, setup.prefix
        self._running_groups: dict[bytes, asyncio.Future[Runner]] = {}
        self._pending_groups_registered = asyncio.Event()
        self._answers: dict[int, asyncio.Future[Found]] = {}
        self._asked = 0
        self._order: asyncio.Task[None] | None = None

    def __del__(self) -> None:
        """Not a process: nothing to shut down."""

    async def open(self) -> None:
        settings = self._setup.settings
        self._p2p = await P2P.replicate(Multiaddr(self._setup.daemon))
        self._send(Listening(str(self._p2p._client.control.listen_maddr)))
        schema = hashlib.sha256(f"float32 {self._setup.buffer.numel()} {settings.compression}".encode()).digest()
        keys = Keys(self._ask, self.prefix, self._p2p.peer_id)
        self._matchmaking = Match(
            self._p2p, schema, keys, servicer_type=type(self), prefix=self.prefix, target_group_size=None, min_group_size=2,
            min_matchmaking_time=settings.match, request_timeout=settings.request, client_mode=self._setup.dial_only,
        )  # fmt: skip
        self._matchmaking.group_key_manager = keys
        if not self._setup.dial_only:
            await self._remove_stale()
            await self.add_p2p_handlers(self._p2p, namespace=self.prefix)
        self._send(Ready(str(self._p2p.peer_id)))

    async def _remove_stale(self) -> None:
        self._collect_rpc_handlers()
        control = self._p2p._client.control
        mine = control.listen_maddr
        for address in self._setup.stale:
            for handler in self._rpc_handlers:
                name = self._get_handle_name(self.prefix, handler.method_name)
                control.listen_maddr, control.handlers[name] = Multiaddr(address), None
                with contextlib.suppress(ControlFailure):  # it had not come as far as that one, or p2pd is a new one
                    await control.remove_stream_handler(name)
        control.listen_maddr = mine

    async def close(self) -> None:
        if not self._setup.dial_only:
            await self.remove_p2p_handlers(self._p2p, namespace=self.prefix)

    def take(self, message: Order | Found) -> None:
        if isinstance(message, Order):
            self._order = asyncio.get_running_loop().create_task(self._obey(message))
        elif (future := self._answers.pop(message.number, None)) is not None and not future.done():
            future.set_result(message)

    async def _ask(self, **question: Any) -> Found:
        """An unanswered question is an empty answer: the round's own times decide what follows."""
        self._asked = number = self._asked + 1
        self._answers[number] = asyncio.get_running_loop().create_future()
        self._send(Ask(number=number, **question))
        try:
            # Not wait_for: Python 3.11's swallows a cancellation that comes together with the answer, and hivemind would search on.
            async with asyncio.timeout(self._setup.settings.request):
                return await self._answers[number]
        except TimeoutError:
            return Found(number, ())
        finally:
            self._answers.pop(number, None)

    async def _obey(self, order: Order) -> None:
        try:
            async with asyncio.timeout(order.seconds - MARGIN):
                members, lost = await self._round(order), ""
        except TimeoutError:
            members, lost = (), f"not done in {order.seconds:.1f} s"
        except Exception as error:  # (whatever hivemind raises here, the round is lost and the reason is told)
            members, lost = (), str(error) or type(error).__name__
        self._send(Ended(members, lost))

    async def _round(self, order: Order) -> tuple[str, ...]:
        invited = (self._p2p.peer_id, *map(PeerID.from_base58, order.peers))
        told = Announcement(order.version, order.weight, self._setup.dial_only, tuple(map(_tag, invited)))
        self._matchmaking.prepare(order, told)
        self._pending_groups_registered.clear()
        try:
            group = await self._gather(_encode(told))
            if group is None:
                return ()
            with self._register_allreduce_group(group):
                await self._reduce(group, frozenset(invited), order.version)
            return tuple(map(str, group.peer_ids))
        finally:
            self._pending_groups_registered.set()

    async def _gather(self, announcement: bytes) -> GroupInfo | None:
        settings, now = self._setup.settings, float(get_dht_time())
        step = Step(now + settings.match, now + settings.match + settings.request, announcement)
        search = asyncio.get_running_loop().create_task(self._matchmaking.look_for_group(step))
        try:
            await asyncio.wait({search}, timeout=settings.match + POLL)
            if not search.done() and self._matchmaking.lonely:
                return None
            return await search
        finally:
            search.cancel()
            await asyncio.wait({search})

    async def _reduce(self, group: GroupInfo, invited: frozenset[PeerID], version: int) -> None:
        told = dict(zip(group.peer_ids, map(_read_announcement, group.gathered), strict=True))
        if len(told) < 2 or not set(told) <= invited or any(one.v != version for one in told.values()):
            raise AllreduceException("the group holds somebody who was not invited or is at another version")
        settings = self._setup.settings
        runner = Runner(
            weights={peer: one.weight for peer, one in told.items()}, codec=settings.compression, p2p=self._p2p,
            servicer_type=type(self), prefix=self.prefix, group_id=group.group_id, tensors=[self._setup.buffer],
            ordered_peer_ids=group.peer_ids, peer_fractions=tuple(float(not one.dial_only) for one in told.values()),
            sender_timeout=settings.chunk, reducer_timeout=2 * settings.chunk,
        )  # fmt: skip
        runner.screen_own()
        self._running_groups[group.group_id].set_result(runner)
        try:
            results = await runner.collect()
        except AllreduceException as error:
            raise AllreduceException(runner.broken or str(error)) from error
        if runner.broken or runner.tensor_part_container.failed_size:
            raise AllreduceException(runner.broken or "a part was lost")
        self._setup.buffer.copy_(results[0])

    async def rpc_join_group(
        self, request: averaging_pb2.JoinRequest, context: P2PContext
    ) -> AsyncIterator[averaging_pb2.MessageFromLeader]:
        async for message in self._matchmaking.rpc_join_group(request, context):
            yield message

    async def rpc_aggregate_part(
        self, stream: AsyncIterator[averaging_pb2.AveragingData], context: P2PContext
    ) -> AsyncIterator[averaging_pb2.AveragingData]:
        if context.remote_id not in self._matchmaking.group_key_manager.invited:
            yield averaging_pb2.AveragingData(code=averaging_pb2.PROTOCOL_VIOLATION)
            return
        async for message in super().rpc_aggregate_part(stream, context):
            yield message

    async def rpc_download_state(
        self, _request: averaging_pb2.DownloadRequest, _context: P2PContext
    ) -> AsyncIterator[averaging_pb2.DownloadData]:
        """Nothing is shared this way: releases are the only way weights reach anybody."""
        return
        yield


def _serve(setup: Setup, pipe: Connection, parent: int) -> None:
    """Main of the averager process. Its first thread reads the pipe; rounds run in a second one.

    torch on a second thread makes an OpenMP pool of its own: the one inherited through the fork is dead.
    """
    ctypes.CDLL(None).prctl(PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(0)
    gc.freeze()  # the parent's objects are not mine to finalize: hivemind's P2P would terminate the parent's p2pd
    signal.set_wakeup_fd(-1)  # else a signal sent to me would wake the parent's loop
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _close_sockets(keep=pipe.fileno())
    logging.getLogger("hivemind").setLevel(logging.WARNING)
    torch.set_num_threads(1)
    loop = uvloop.new_event_loop()
    rounds = Rounds(setup, lambda message: pipe.send_bytes(_encode(message)))
    threading.Thread(target=_run_rounds, args=(loop, rounds), daemon=True).start()
    decoder = msgspec.msgpack.Decoder(_FromParent)
    with contextlib.suppress(EOFError, OSError):
        while not isinstance(message := decoder.decode(pipe.recv_bytes()), Leave):
            loop.call_soon_threadsafe(rounds.take, message)
        asyncio.run_coroutine_threadsafe(rounds.close(), loop).result(LEAVE)
    os._exit(0)


def _run_rounds(loop: asyncio.AbstractEventLoop, rounds: Rounds) -> None:
    try:
        asyncio.set_event_loop(loop)
        loop.run_until_complete(rounds.open())
        loop.run_forever()
    except BaseException:
        traceback.print_exc()
        os._exit(1)  # the parent sees the pipe close, and why in its log


def _close_sockets(keep: int) -> None:
    """Let go of the parent's connections: as long as I hold a copy, the other side never learns that the parent closed it."""
    for fd in map(int, os.listdir("/proc/self/fd")):
        with contextlib.suppress(OSError):
            if fd > 2 and fd != keep and stat.S_ISSOCK(os.fstat(fd).st_mode):
                os.close(fd)


# -- in the peer ------------------------------------------------------------------------------------------------------------


class Child:
    """One averager process, seen from its parent: a pipe whose messages become futures."""

    def __init__(self, setup: Setup, dht: DHT, generation: int, gone: Callable[[Child], None]) -> None:
        """Forks: on the main thread, whose death the process shall follow."""
        if threading.current_thread() is not threading.main_thread():
            raise RuntimeError("an averager process starts on the main thread: it dies together with the thread that forked it")
        self._loop, self._dht, self._gone = asyncio.get_running_loop(), dht, gone
        self.generation, self.address = generation, ""
        self.ready: asyncio.Future[PeerId] = self._loop.create_future()
        self.ended: asyncio.Future[Ended] | None = None
        self._lookups: set[Any] = set()  # hivemind keeps only weak references to its futures
        self._decoder = msgspec.msgpack.Decoder(_FromChild)
        fork = multiprocessing.get_context("fork")
        self._pipe, inner = fork.Pipe()
        self.process = fork.Process(target=_serve, args=(setup, inner, os.getpid()), name="averager", daemon=True)
        stdin, sys.stdin = sys.stdin, None  # the new process closes it, and hangs when a thread here is reading it at the fork
        try:
            self.process.start()
        finally:
            sys.stdin = stdin
        inner.close()
        self._loop.add_reader(self._pipe.fileno(), self._read)

    def send(self, message: _FromParent) -> None:
        with contextlib.suppress(OSError):  # a process that is gone is noticed by its pipe's end
            if not self._pipe.closed:
                self._pipe.send_bytes(_encode(message))

    async def run(self, order: Order) -> Ended:
        self.ended = self._loop.create_future()
        self.send(order)
        return await self.ended

    def _read(self) -> None:
        try:
            while not self._pipe.closed and self._pipe.poll():
                self._take(self._decoder.decode(self._pipe.recv_bytes()))
        except (EOFError, OSError):
            self.let_go("the averager process is gone")
            self._gone(self)

    def _take(self, message: _FromChild) -> None:
        match message:
            case Listening():
                self.address = message.address
            case Ready():
                self.ready.set_result(PeerId(message.me))
            case Ask():
                self._look_up(message)
            case Ended():
                if self.ended is not None and not self.ended.done():
                    self.ended.set_result(message)

    def _look_up(self, ask: Ask) -> None:
        if ask.subkey:
            future = self._dht.store(ask.key, ask.looking, ask.expires, subkey=ask.subkey, return_future=True)
        else:
            future = self._dht.get(ask.key, latest=True, return_future=True)
        self._lookups.add(future)
        future.add_done_callback(lambda done: self._loop.call_soon_threadsafe(self._answer, ask, done))

    def _answer(self, ask: Ask, future: Any) -> None:
        self._lookups.discard(future)
        failed = future.cancelled() or future.exception() is not None
        self.send(Found(ask.number, () if failed or ask.subkey else tuple(_declared(future.result()))))

    def let_go(self, why: str) -> None:
        """Read no more; whoever waits for this process learns why it will not answer."""
        if not self._pipe.closed:
            self._loop.remove_reader(self._pipe.fileno())
            self._pipe.close()
        for future in (self.ready, self.ended):
            if future is not None and not future.done():
                future.set_exception(RoundLost(why))
                future.exception()  # seen, also when nobody waits

    async def kill(self, why: str) -> None:
        """SIGKILL (which also ends a stopped process), and wait until nothing of it is left."""
        self.let_go(why)
        self.process.kill()
        await self._reap(math.inf)

    async def leave(self) -> None:
        self.send(Leave())
        if not await self._reap(2 * LEAVE):
            self.process.kill()
            await self._reap(math.inf)
        self.let_go("the averager is closed")

    async def _reap(self, seconds: float) -> bool:
        end = self._loop.time() + seconds
        while self.process.is_alive():
            if self._loop.time() > end:
                return False
            await asyncio.sleep(0.01)
        if self.address:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self.address.removeprefix("/unix"))
        return True


def _declared(result: Any) -> Iterator[tuple[bytes, float]]:
    """Subkeys and expirations of those who look for a group; what others stored there is not believed to have any form."""
    if result is not None and isinstance(result.value, dict):
        for subkey, entry in result.value.items():
            if isinstance(subkey, bytes) and len(subkey) <= 64 and getattr(entry, "value", None) is True:
                yield subkey, float(entry.expiration_time)


class HiveAverager:
    """The Averager port. `start` and `average` are called on the loop of the main thread."""

    def __init__(
        self,
        dht: Callable[[], tuple[DHT, int]],
        prefix: str,
        numel: int,
        settings: Averaging,
        report: Callable[[str, str, float | None], None],
    ) -> None:
        """`dht()` is the live DHT and its generation: when that changed, the process is replaced before the next round.

        `numel` float32 values are averaged, in memory shared with the averager process (anonymous: not bounded by /dev/shm).
        `report("averager", why, None)` tells of a process given up, `report("averager", "", seconds)` of the next one ready.
        """
        if "." in prefix:
            raise ValueError(f"the prefix {prefix!r} contains a dot, which ends the prefix of a hivemind group key: take another")
        if settings.compression not in _CODECS:
            raise ValueError(f"compression {settings.compression!r} is unknown: take one of {', '.join(_CODECS)}")
        self._dht, self._prefix, self._settings, self._report = dht, prefix, settings, report
        self._buffer = torch.frombuffer(mmap.mmap(-1, 4 * max(numel, 1)), dtype=torch.float32)[:numel]
        self._one_round = asyncio.Lock()
        self._stale: tuple[str, ...] = ()
        self._child: Child | None = None
        self._replacement: asyncio.Task[None] | None = None
        self._closed = False

    async def start(self) -> None:
        """Raises RoundLost or TimeoutError when the process does not become ready."""
        self._child = await self._spawn()

    async def close(self) -> None:
        self._closed = True
        if self._replacement is not None:
            self._replacement.cancel()
            await asyncio.wait({self._replacement})
        if self._child is not None:
            await self._child.leave()

    async def average(
        self,
        version: int,
        tensors: Sequence[torch.Tensor],
        weight: float,
        peers: Collection[PeerId],
        deadline: float,
    ) -> Average | None:
        """See the port. `weight` in (0, 1e6]; the tensors hold `numel` values in all."""
        if sum(tensor.numel() for tensor in tensors) != self._buffer.numel():
            raise ValueError(f"the tensors do not hold the {self._buffer.numel()} values that this averager was made for")
        if not (math.isfinite(weight) and 0 < weight <= MAX_WEIGHT):
            raise ValueError(f"the weight {weight} is not in (0, {MAX_WEIGHT:g}]")
        if not peers:
            return None
        loop = asyncio.get_running_loop()
        began = loop.time()
        try:
            async with asyncio.timeout_at(began + deadline), self._one_round:
                child = await self._healthy()
                await _in_thread(self._copy_in, tensors)
                left = began + deadline - loop.time()
                ended = await self._supervised(child, Order(version, float(weight), tuple(sorted(peers)), left))
        except TimeoutError:
            raise RoundLost(f"version {version}: the averager did not answer within {deadline:g} s and is replaced") from None
        if ended.lost:
            raise RoundLost(f"version {version}: {ended.lost}")
        if not ended.members:
            return None
        await _in_thread(self._copy_out, tensors)
        return Average(frozenset(map(PeerId, ended.members)), loop.time() - began)

    async def _supervised(self, child: Child, order: Order) -> Ended:
        try:
            return await child.run(order)
        except asyncio.CancelledError:  # the deadline, or the caller gave up: the process is still busy with the round
            self._replace("a round did not end by its deadline")
            raise

    async def _healthy(self) -> Child:
        """The process of the DHT's present generation; waits for a replacement."""
        if self._child is not None and self._child.generation != self._dht()[1]:
            self._replace("the DHT below it was replaced")
        while self._replacement is not None:
            await asyncio.wait({self._replacement})
        if self._child is None:
            raise RoundLost("the averager is not running")
        return self._child

    def _replace(self, why: str) -> None:
        if self._replacement is None and not self._closed:
            self._report("averager", why, None)
            self._replacement = asyncio.get_running_loop().create_task(self._revive(why))

    async def _revive(self, why: str) -> None:
        began = asyncio.get_running_loop().time()
        try:
            while True:
                if self._child is not None:
                    await self._bury(self._child, why)
                try:
                    self._child = await self._spawn()
                    break
                except (RoundLost, TimeoutError, OSError) as error:
                    self._report("averager", f"a new process did not start: {error or type(error).__name__}", None)
                    await asyncio.sleep(1.0)
            self._report("averager", "", asyncio.get_running_loop().time() - began)
        finally:
            self._replacement = None

    async def _bury(self, child: Child, why: str) -> None:
        await child.kill(why)
        self._child = None
        if child.address:
            self._stale = (*self._stale, child.address)[-STALE:]

    async def _spawn(self) -> Child:
        """Raises RoundLost or TimeoutError; the process that did not start is gone then."""
        dht, generation = self._dht()
        async with asyncio.timeout(START):
            daemon = await dht.run_coroutine(DHT._get_p2p_daemon_listen_maddr, return_future=True)
            dial_only = await dht.run_coroutine(DHT._get_client_mode, return_future=True)
        setup = Setup(self._prefix, self._settings, self._buffer, str(daemon), dial_only, self._stale)
        child = Child(setup, dht, generation, self._on_gone)
        try:
            async with asyncio.timeout(START):
                await child.ready
        except BaseException:
            await self._bury(child, "the averager process did not become ready")
            raise
        return child

    def _on_gone(self, child: Child) -> None:
        if child is self._child:
            self._replace("the averager process died")

    def _copy_in(self, tensors: Sequence[torch.Tensor]) -> None:
        for tensor, part in zip(tensors, self._parts(tensors), strict=True):
            part.copy_(tensor.detach().reshape(-1))

    @torch.no_grad()
    def _copy_out(self, tensors: Sequence[torch.Tensor]) -> None:
        for tensor, part in zip(tensors, self._parts(tensors), strict=True):
            tensor.copy_(part.view(tensor.shape))

    def _parts(self, tensors: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        return self._buffer.split([tensor.numel() for tensor in tensors])


async def _in_thread(function: Callable[..., T], *args: Any) -> T:
    """Off the loop, and never left half done: a cancellation waits for it."""
    task = asyncio.ensure_future(asyncio.to_thread(function, *args))
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait({task})
        raise
