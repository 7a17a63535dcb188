"""Rounds in the averager process: takes orders of its peer, gathers a group, reduces, and overwrites its
input with the mean.

    peer --- Order ---> matching -> all-reduce -> shared buffer --- RoundEnded ---> peer
                            ^ calls of other averager processes, through the peer's p2pd

Invariants: the buffer changes during a round only, and holds the mean after a complete one (after a lost one
nothing of use); uninvited peers are not served. The process shares no lock with the peer: hivemind's MPFuture
takes locks of all its processes, and one that is frozen or killed while it holds one takes the whole peer
along. So hivemind's calls and reducer are used and its DecentralizedAverager, which is a process, is not. The
process ends with its parent: one thread reads the pipe (serve), rounds run in a second one.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import os
import threading
import traceback
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import AsyncIterator  # noqa: UP035 (hivemind reads the hints of calls, and knows this one only)

import msgspec
import torch
from hivemind.averaging.allreduce import AllreduceException
from hivemind.averaging.group_info import GroupInfo
from hivemind.p2p import P2PContext, PeerID, ServicerBase
from hivemind.p2p.p2p_daemon_bindings.utils import ControlFailure
from hivemind.proto import averaging_pb2
from hivemind.utils.asyncio import achain, as_aiter
from hivemind.utils.multiaddr import Multiaddr

from swarm.core.agreement import shares
from swarm.core.gradient_checks.majority import minority, named_by_most
from swarm.core.gradient_checks.norm_screening import AnnouncedNorm, once
from swarm.core.gradient_checks.reducer_checks import Presences
from swarm.core.gradient_checks.step_recipe import Ingredient, MeanRecipe
from swarm.net.averaging.allreduce import Runner
from swarm.net.averaging.announcing import (
    Announcement,
    MatchError,
    false_reducers,
    lines_of,
    read_announcement,
    tag,
)
from swarm.net.averaging.bypass import TicketServer
from swarm.net.averaging.codec import Codec
from swarm.net.averaging.matching import Matching
from swarm.net.averaging.messages import (
    AveragerReady,
    FromChild,
    FromParent,
    Gone,
    GroupFormed,
    Leave,
    Listening,
    Order,
    RoundEnded,
    encode,
)
from swarm.net.averaging.paced import PacedP2P, registered
from swarm.net.rate import RateLimits
from swarm.norm import LARGEST, norm
from swarm.processes.allocation import keep_freed
from swarm.processes.event_loop import EventLoop
from swarm.processes.process import Pipe
from swarm.processes.processors import processors
from swarm.settings.config import Averaging, Listen
from swarm.types import PeerId

MARGIN = 0.3
"""Seconds before the deadline when a round ends by itself, so that a slow one costs a round and not a
process."""

LEAVE = 1.0
"""Seconds for a process to take its handlers back when it leaves; then it is killed."""

KEPT = 32 << 20
"""Bytes that each of the C library's arenas keeps: some parts at each stage. Returning pages to the system
and getting them again costs more than all computation on them."""


@dataclass(frozen=True, slots=True)
class AveragerSetup:
    """The settings of a new averager process."""

    prefix: str
    settings: Averaging
    groups: int
    """Of the run's whole batch."""
    buffer: torch.Tensor
    daemon: str
    """p2pd's control address."""
    listen: Listen
    stale: tuple[str, ...]
    """Addresses of dead averager processes at this p2pd."""
    limits: RateLimits
    """Of the peer's line, shared with its mail."""


# -- rounds --------------------------------------------------------------------------------------------------


class Rounds(ServicerBase):  # type: ignore[misc]
    """Averages once for each order, and answers the calls of others."""

    def __init__(self, setup: AveragerSetup, send: Callable[[FromChild], None]) -> None:
        self._setup, self._send = setup, send
        self._runners: dict[bytes, asyncio.Future[Runner]] = {}
        self._known = asyncio.Event()
        self._known.set()  # cleared while a group may be about to form
        self._order: asyncio.Task[None] | None = None
        self._limit: asyncio.Timeout
        self._presences = Presences()
        self._slower = 1.0
        """Factor of a round's time limit: the lines are slower than announced while rounds run out of
        time."""

    async def open(self) -> None:
        setup, settings = self._setup, self._setup.settings
        self._p2p = await PacedP2P.replicate(Multiaddr(setup.daemon))
        self._p2p.limits = setup.limits
        self._send(Listening(str(self._p2p._client.control.listen_maddr)))
        schema = hashlib.sha256(
            f"scale, float32 {setup.buffer.numel()} {settings.compression}".encode()
        ).digest()
        self._matching = Matching(
            self._p2p.peer_id,
            setup.listen.dial_only,
            schema,
            settings.match,
            settings.request,
            stub=lambda peer: self.get_stub(self._p2p, peer, namespace=setup.prefix),
        )
        self._p2p.answers = lambda peer: peer in self._matching.invited
        if not setup.listen.dial_only:
            self._p2p.ticket_server = await TicketServer.opened(setup.listen.host, setup.listen.parts)
            await self._remove_stale()
            await self.add_p2p_handlers(self._p2p, namespace=setup.prefix)
        self._send(AveragerReady(str(self._p2p.peer_id)))

    async def _remove_stale(self) -> None:
        """p2pd keeps the stream handlers of a dead process and refuses new ones; they are removed by its
        address."""
        self._collect_rpc_handlers()
        control = self._p2p._client.control
        mine = control.listen_maddr
        calls = [self._get_handle_name(self._setup.prefix, one.method_name) for one in self._rpc_handlers]
        for address in self._setup.stale:
            for name in (name for call in calls for name in registered(call)):
                control.listen_maddr, control.handlers[name] = Multiaddr(address), None
                # it had not come as far as that one, or p2pd is a new one
                with contextlib.suppress(ControlFailure):
                    await control.remove_stream_handler(name)
        control.listen_maddr = mine

    async def close(self) -> None:
        if not self._setup.listen.dial_only:
            await self.remove_p2p_handlers(self._p2p, namespace=self._setup.prefix)

    def gone(self, message: Gone) -> None:
        self._matching.gone(map(PeerID.from_base58, message.peers))

    def take(self, order: Order) -> None:
        self._order = asyncio.get_running_loop().create_task(self._obey(order))

    async def _obey(self, order: Order) -> None:
        loop = asyncio.get_running_loop()
        began = loop.time()
        try:
            async with asyncio.timeout(order.seconds - MARGIN) as self._limit:
                ended = await self._round(order)
        except TimeoutError:
            ended = RoundEnded(f"not done in {loop.time() - began:.1f} s")
        # (whatever hivemind raises here, the round is lost and the reason is reported)
        except Exception as error:
            ended = RoundEnded(str(error) or type(error).__name__)
        self._send(ended)

    async def _round(self, order: Order) -> RoundEnded:
        invited = frozenset(map(PeerID.from_base58, order.peers))
        mine = await asyncio.get_running_loop().run_in_executor(None, norm, self._setup.buffer)
        if not mine <= LARGEST:
            return RoundEnded("my own tensors are not finite", not_finite=True)
        self._known.clear()
        try:
            told = self._announcement(order, mine, invited)
            group = await self._matching.gather(told, invited, order.patience)
            if group is None:
                return RoundEnded()
            with self._registered(group.group_id) as promise:
                return await self._reduce(group, invited, order, promise)
        finally:
            self._known.set()

    def _announcement(self, order: Order, norm: float, invited: Collection[PeerID]) -> Announcement:
        members = {str(peer): tag(peer) for peer in (self._p2p.peer_id, *invited)}
        against = {*order.against} & members.keys()
        uplink = shares.announced(order.uplink, self._p2p.carried)
        return Announcement(
            order.version,
            order.weight,
            norm,
            order.usual,
            self._setup.listen.dial_only,
            uplink,
            tuple(members.values()),
            order.marks,
            order.weights,
            against=tuple(members[peer] for peer in against),
            doubted=tuple(members[peer] for peer in self._presences.doubted(members)),
            part=shares.largest_part(uplink > 0, processors()),
        )

    @contextmanager
    def _registered(self, group: bytes) -> Iterator[asyncio.Future[Runner]]:
        promise = self._runners[group] = asyncio.get_running_loop().create_future()
        self._known.set()
        try:
            yield promise
        finally:
            del self._runners[group]
            promise.cancel()

    async def _reduce(
        self,
        group: GroupInfo,
        invited: frozenset[PeerID],
        order: Order,
        promise: asyncio.Future[Runner],
    ) -> RoundEnded:
        told = self._announcements(group, invited, order)
        settings, codec = self._setup.settings, Codec(self._setup.settings.compression)
        false = false_reducers(told)
        lines = lines_of(told, false)
        size = self._setup.buffer.numel() * shares.WIRE_BYTES[settings.compression]
        claims = _judged(told)
        parts, part = shares.shares(lines), shares.part_bytes(lines, size)
        named = _named(told)
        mine = [peer for peer in told if str(self._p2p.peer_id) in named.get(str(peer), ())]
        runner = Runner(
            claims=claims,
            groups=self._setup.groups,
            key=order.key,
            left_out=minority(mine, len(told)),
            codec=codec,
            p2p=self._p2p,
            servicer_type=type(self),
            prefix=self._setup.prefix,
            group_id=group.group_id,
            tensors=[self._setup.buffer],
            ordered_peer_ids=group.peer_ids,
            peer_fractions=tuple(parts),
            part_size_bytes=part,
            sender_timeout=(patience := shares.patience(lines, part, settings.chunk)),
            reducer_timeout=2 * patience,
        )
        promise.set_result(runner)
        made = _recipe(claims, parts, part)
        try:
            with self._held_to(lines, size):
                await runner.reduce()
        except AllreduceException as error:
            raise AllreduceException(runner.broken or str(error)) from error
        self._presences.add(runner.presences())
        return RoundEnded(
            members=tuple(map(str, group.peer_ids)),
            exchanged=runner.exchanged(),
            false=tuple(map(str, false)),
            through=tuple(str(peer) for peer in group.peer_ids if peer in self._p2p.through),
            scaled=runner.scaled(),
            named=named,
            spans=runner.spans if order.key else (),
            sketches=runner.sketched(),
            norms={str(peer): one.norm for peer, one in told.items()},
            marks={str(peer): one.marks for peer, one in told.items() if claims[peer].weight > 0},
            # a reducer may leave out a member that counts elsewhere
            recipe=None if any(str(peer) in named and claims[peer].weight for peer in told) else made,
        )

    def _announcements(
        self, group: GroupInfo, invited: frozenset[PeerID], order: Order
    ) -> dict[PeerID, Announcement]:
        """The announcements of a group's members. Raises MatchError."""
        found = dict(zip(group.peer_ids, map(read_announcement, group.gathered), strict=True))
        if (
            len(found) < 2
            or not set(found) <= {self._p2p.peer_id, *invited}
            or any((one.v, one.weights) != (order.version, order.weights) for one in found.values())
        ):
            raise MatchError("the group holds a peer that was not invited or is at another version")
        return found

    @contextmanager
    def _held_to(self, lines: Sequence[shares.AnnouncedLine], size: float) -> Iterator[None]:
        """Where the run sets no deadline, the round's is by its lines. A round that is lost later than was
        expected makes the next ones' longer: members lose it one after the other."""
        if self._setup.settings.deadline:
            yield
            return
        loop, allowed = asyncio.get_running_loop(), self._slower * shares.deadline(lines, size)
        end = loop.time() + allowed
        self._limit.reschedule(min(self._limit.when() or end, end))
        self._send(GroupFormed(allowed))
        try:
            yield
        except BaseException:
            if loop.time() > end - allowed / 2:
                self._slower *= 2
            raise
        self._slower = 1.0

    async def rpc_join_group(
        self, request: averaging_pb2.JoinRequest, context: P2PContext
    ) -> AsyncIterator[averaging_pb2.MessageFromLeader]:
        async with contextlib.aclosing(self._matching.join(request, context.remote_id)) as replies:
            async for reply in replies:
                yield reply

    async def rpc_aggregate_part(
        self, stream: AsyncIterator[averaging_pb2.AveragingData], context: P2PContext
    ) -> AsyncIterator[averaging_pb2.AveragingData]:
        first = await anext(aiter(stream), None)
        if first is None:
            return
        if first.group_id not in self._runners:
            await self._known.wait()  # the leader's BEGIN may be on its way to me still
        if (promise := self._runners.get(first.group_id)) is None:
            yield averaging_pb2.AveragingData(code=averaging_pb2.BAD_GROUP_ID)
            return
        async for message in (await promise).rpc_aggregate_part(achain(as_aiter(first), stream), context):
            yield message
        # until the sender hangs up: p2pd may lose the bytes sent right before a close
        await asyncio.sleep(self._setup.settings.chunk)


def serve(setup: AveragerSetup) -> None:
    """Main of the averager process, a fork of its peer's.

    torch on a second thread makes an OpenMP pool of its own: the one inherited through the fork is dead.
    """
    pipe = Pipe()
    logging.getLogger("hivemind").setLevel(logging.WARNING)
    torch.set_num_threads(1)
    keep_freed(KEPT)
    loop = EventLoop()
    rounds = Rounds(setup, lambda message: pipe.send(encode(message)))
    threading.Thread(target=_run_rounds, args=(loop, rounds), daemon=True).start()
    decoder = msgspec.msgpack.Decoder(FromParent)
    while (frame := pipe.receive()) is not None:
        match decoder.decode(frame):
            case Order() as order:
                loop.call_soon_threadsafe(rounds.take, order)
            case Gone() as gone:
                loop.call_soon_threadsafe(rounds.gone, gone)
            case Leave():
                with contextlib.suppress(OSError):  # p2pd is gone, or late
                    asyncio.run_coroutine_threadsafe(rounds.close(), loop).result(LEAVE)
                return


def _run_rounds(loop: asyncio.AbstractEventLoop, rounds: Rounds) -> None:
    try:
        asyncio.set_event_loop(loop)
        # Its threads compute: more than there are cores wait for each other.
        loop.set_default_executor(ThreadPoolExecutor(processors()))
        loop.run_until_complete(rounds.open())
        loop.run_forever()
    except BaseException:
        traceback.print_exc()
        os._exit(1)  # the parent sees the pipe close, and why


def _judged(told: Mapping[PeerID, Announcement]) -> dict[PeerID, AnnouncedNorm]:
    """The claims that count: those announced while the group formed, so that all reducers use the same ones,
    without the weight of members that most others have proof against. Raises MatchError where no gradient
    counts."""
    against = named_by_most({tag(peer): one.against or () for peer, one in told.items()})
    out = [k for k, peer in enumerate(told) if tag(peer) in against]
    judged = once([one.claim for one in told.values()], [one.marks for one in told.values()], out)
    if not any(one.weight for one in judged):
        raise MatchError("no member of the group has a gradient that counts")
    return dict(zip(told, judged, strict=True))


def _named(told: Mapping[PeerID, Announcement]) -> dict[str, tuple[str, ...]]:
    """Members that others have proof against -> these."""
    by = {peer: tuple(str(one) for one in told if tag(peer) in (told[one].against or ())) for peer in told}
    return {str(peer): its for peer, its in by.items() if its}


def _recipe(claims: Mapping[PeerID, AnnouncedNorm], parts: Sequence[int], part: int) -> MeanRecipe:
    members = (
        Ingredient(peer=PeerId(str(peer)), **claim._asdict(), share=share)
        for (peer, claim), share in zip(claims.items(), parts, strict=True)
    )
    return MeanRecipe(members=tuple(members), part=part)
