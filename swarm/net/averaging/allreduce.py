"""All-reduce of a group: hivemind's butterfly, changed so that all members get the same bytes or none.

    this member's part of all members' tensors -> weighted mean -> encoded once -> all members

In come a group, its members' claims and a flat tensor; the means take the place of its values, part by part.
Invariants: every member ends with the bytes that each reducer encoded; sizes are compared before anything is
allocated; a part that is lost or of another shape breaks the round for all senders, and leaves some values
and some means. A mean is added up in the order of the members, so swarm.net.averaging.recomputed_mean makes
the same one of their tensors. A value that is too large breaks no round
(swarm.core.gradient_checks.norm_screening): a reducer scales parts down that exceed their sender's announced
norm, all members scale means down that exceed the largest possible mean, and take zeros for parts and means
that are not finite. Each member notes how much of its own part is in the returned mean
(swarm.core.gradient_checks.reducer_checks).
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Callable,
    Collection,
    Mapping,
    Sequence,
)
from itertools import accumulate
from typing import (
    Any,
    NamedTuple,
    TypeVar,
)

import torch
from hivemind.averaging.allreduce import AllreduceException, AllReduceRunner
from hivemind.averaging.partition import TensorPartReducer
from hivemind.p2p import PeerID
from hivemind.proto import averaging_pb2, runtime_pb2

from swarm.core.gradient_checks.inner_products import InnerProducts
from swarm.core.gradient_checks.norm_screening import (
    Allowance,
    AnnouncedNorm,
    ScreenedWeight,
    largest_mean_norm,
    screened_weights,
)
from swarm.core.gradient_checks.reducer_checks import presence
from swarm.net.averaging import sketch
from swarm.net.averaging.codec import Codec
from swarm.net.averaging.weighted_mean import weighted_mean
from swarm.norm import norm

T = TypeVar("T")

NOTHING = torch.empty(0)

AHEAD = 2
"""Parts that are read before they are added up, and sums that are begun before the one before them is sent:
where cores are many, a part waits at each stage for longer than it is computed."""


class Sum(NamedTuple):
    """Of a part of mine, as all members get it."""

    packed: runtime_pb2.Tensor
    value: torch.Tensor
    """As receivers decode it."""
    mine: InnerProducts
    """Of my own part with it."""


class Runner(AllReduceRunner):  # type: ignore[misc]
    """Butterfly all-reduce that gives all members the same bytes, or breaks."""

    tensor_part_reducer: TensorPartReducer

    def __init__(
        self,
        *,
        claims: Mapping[PeerID, AnnouncedNorm],
        groups: int,
        codec: Codec,
        key: int = 0,
        left_out: Collection[PeerID] = (),
        **kwargs: Any,
    ) -> None:
        """`groups`: those of the run's whole batch; a claim of no weight adds nothing. Received parts are
        sketched by `key`; 0: they are not. Those of members that are `left_out` are not in the means that
        this one makes."""
        super().__init__(weight=1.0, compression=codec, **kwargs)
        self.broken, self.cut = "", asyncio.Event()
        self._codec = codec
        judged = screened_weights([claims[peer] for peer in self.ordered_peer_ids], groups)
        self._standing: dict[PeerID, ScreenedWeight] = dict(zip(self.ordered_peer_ids, judged, strict=True))
        largest = largest_mean_norm([claims[peer] for peer in self.ordered_peer_ids], judged)
        weights = {peer: one.weight for peer, one in self._standing.items()}
        counted = {peer: 0.0 if peer in left_out else weight for peer, weight in weights.items()}
        self._weights = counted if any(counted.values()) else weights
        """Of the members in my sums."""
        self._sent = {peer: Allowance(claims[peer].norm) for peer in self.ordered_peer_ids}
        self._reduced = {peer: Allowance(largest) for peer in self.ordered_peer_ids}
        self._parts = [
            [part for part, _ in parts] for parts in self.tensor_part_container._input_parts_by_peer
        ]
        # Parts come in any order, and are added up in that of the members: hivemind's reducer, which adds as
        # they come, gets none of their values and signals when all are here.
        mine = self.parts_for_local_averaging
        self._shapes = [part.shape for part in mine]
        # hivemind's own gets no part: dropped before it counts as finished, it warns of a round that failed.
        self.tensor_part_reducer.finished.set()
        self.tensor_part_reducer = TensorPartReducer([torch.Size([0])] * len(mine), len(self.sender_peer_ids))
        self._come: dict[int, dict[int, torch.Tensor]] = {}
        """Number of a part of mine -> index of a sender -> that part, until all are here."""
        self._sums: dict[int, tuple[asyncio.Future[Sum], int]] = {}
        """Number of a part of mine -> its sum, and how many members have not asked for it yet."""
        self._returned = {peer: InnerProducts() for peer in self.ordered_peer_ids}
        """Reducer -> my parts and its means."""
        index = self.ordered_peer_ids.index(self.peer_id)
        sizes = [part.numel() for part in self._parts[index]]
        first = sum(part.numel() for parts in self._parts[:index] for part in parts)
        self.spans = tuple(zip(accumulate([first, *sizes]), sizes, strict=False))
        """Of my parts in the flat tensor."""
        others = [peer for peer in self.sender_peer_ids if peer != self.peer_id] if key and sizes else []
        self._key, self._sketches = key, {peer: sketch.empty() for peer in others}

    def scaled(self) -> dict[str, float]:
        """Member -> factor by which its gradient, or its parts and means beyond the announced norm, were
        scaled down, as far as this member knows."""
        held = {
            peer: min(self._sent[peer].least, self._reduced[peer].least) for peer in self.ordered_peer_ids
        }
        shares = {str(peer): one.share * held[peer] for peer, one in self._standing.items()}
        return {peer: share for peer, share in shares.items() if share < 1}

    def sketched(self) -> dict[str, bytes]:
        """Member -> sketch of the parts that it sent here."""
        return {str(peer): total.numpy().tobytes() for peer, total in self._sketches.items()}

    def should_delay_results(self, peer_id: PeerID) -> bool:
        """Means go back while parts still come, also to members that reduce nothing: lines go both ways."""
        return False

    async def reduce(self) -> None:
        """Put the means where the values were. Nothing changes once this has ended. Raises
        AllreduceException."""
        loop, carried = asyncio.get_running_loop(), 0.0
        began = loop.time()
        work, cut = loop.create_task(self._communicate()), loop.create_task(self.cut.wait())
        tasks = work, cut, loop.create_task(self._handle_missing_senders())
        try:
            await asyncio.wait({work, cut}, return_when=asyncio.FIRST_COMPLETED)
            if self.broken:
                raise AllreduceException(self.broken)
            work.result()
            self.finalize()
            carried = sum(self.exchanged().values()) / (loop.time() - began)
        finally:
            self._p2p.carried = int(carried)
            self.finalize(cancel=True)  # unless it is done
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _communicate(self) -> None:
        async with asyncio.TaskGroup() as members:
            for peer, parts in zip(self.ordered_peer_ids, self._parts, strict=True):
                if parts:
                    members.create_task(self._communicate_with_peer(peer))

    def exchanged(self) -> dict[str, int]:
        """Member -> bytes of parts that a complete round got from it, and sent there: its own part's and
        mine."""
        sizes = [sum(self._codec.size(part.numel()) for part in parts) for parts in self._parts]
        mine = sizes[self.ordered_peer_ids.index(self.peer_id)]
        return {
            str(peer): size + mine
            for peer, size in zip(self.ordered_peer_ids, sizes, strict=True)
            if peer != self.peer_id
        }

    def _break(self, why: str) -> None:
        if not self.broken:
            self.broken = why
            self.finalize(cancel=True)
            self.cut.set()

    def _read_part(self, packed: runtime_pb2.Tensor, shape: torch.Size) -> tuple[torch.Tensor, float]:
        """A member's part and its norm."""
        part = self._codec.read(packed, shape)
        return part, norm(part)

    async def _scaled_part(self, sender: int, number: int, part: torch.Tensor, size: float) -> torch.Tensor:
        """A member's part of norm `size`, sketched as it came, scaled down where it exceeds the announced
        norm; zeros where it is not finite."""
        peer = self.sender_peer_ids[sender]
        if not math.isfinite(size):
            self._sent[peer].least = 0.0
            return part.zero_()
        if (total := self._sketches.get(peer)) is not None:
            await _in_thread(sketch.add, total, part, self._key, self.spans[number][0])
        share = self._standing[peer].share * self._sent[peer].take(size)
        return await _scaled(part, share)

    def _scaled_mean(self, reducer: PeerID, packed: runtime_pb2.Tensor, mine: torch.Tensor) -> torch.Tensor:
        """A reducer's mean of a part of which `mine` is mine, scaled down where it exceeds the largest
        possible norm, zeros where it is not finite: the same at all members."""
        mean = self._codec.read(packed, mine.shape)
        if math.isfinite(size := norm(mean)):
            share = self._reduced[reducer].take(size)
            mean, size = mean.mul_(share) if share != 1 else mean, size * share
        else:
            self._reduced[reducer].least = size = 0.0
            mean.zero_()
        self._returned[reducer] = self._returned[reducer].and_of(_products(mine, mean, size))
        return mean

    def presences(self) -> dict[str, float]:
        """Reducer of my parts -> how much of them is in its means
        (swarm.core.gradient_checks.reducer_checks)."""
        mine = self._standing[self.peer_id]
        if mine.share < 1:
            return {}  # how much of it belongs in the mean is for the others to decide
        share = mine.weight / sum(one.weight for one in self._standing.values())
        returned = self._returned.items()
        return {str(peer): presence(its, share) for peer, its in returned if its.one * share > 0}

    async def _communicate_with_peer(self, peer_id: PeerID) -> None:
        index = self.ordered_peer_ids.index(peer_id)
        try:
            await (self._reduce_own(index) if peer_id == self.peer_id else self._exchange(peer_id, index))
        except Exception as error:
            self._break(f"lost the parts of {peer_id}: {error or type(error).__name__}")
            raise

    async def _reduce_own(self, index: int) -> None:
        async with contextlib.aclosing(ahead(self._own_sums(self._parts[index]), AHEAD)) as sums:
            async for part, coming in sums:
                made = await asyncio.shield(coming)
                await _in_thread(self._keep, made)
                part.copy_(made.value)

    async def _own_sums(
        self, parts: Sequence[torch.Tensor]
    ) -> AsyncGenerator[tuple[torch.Tensor, asyncio.Future[Sum]]]:
        sender = self.sender_peer_ids.index(self.peer_id)
        share = self._standing[self.peer_id].share
        for number, part in enumerate(parts):
            yield part, await self._gathered(sender, number, await _scaled(part, share))

    async def _exchange(self, peer_id: PeerID, index: int) -> None:
        mine, number = self._parts[index], 0
        parts = self._generate_input_for_peer(index)
        stream = await self._get_peer_stub(peer_id).rpc_aggregate_part(parts)
        mean: asyncio.Future[torch.Tensor] | None = None
        async with contextlib.aclosing(stream):
            while True:
                async with asyncio.timeout(self.reducer_timeout):
                    message = await anext(stream, None)
                if message is None:
                    raise AllreduceException(f"it sent {number} of {len(mine)} parts")
                if message.code != averaging_pb2.AVERAGED_PART:
                    raise AllreduceException(f"it sent {averaging_pb2.MessageCode.Name(message.code)}")
                if mean is not None:
                    mine[number - 1].copy_(await mean)
                # The next one comes meanwhile.
                mean = _in_thread(self._scaled_mean, peer_id, message.tensor_part, mine[number])
                number += 1
                if number == len(mine):  # the reducer waits for me to hang up
                    mine[-1].copy_(await mean)
                    return

    async def _generate_input_for_peer(self, peer_index: int) -> AsyncIterator[averaging_pb2.AveragingData]:
        parts, group = self._parts[peer_index], self.group_id
        encoded = _in_thread(self._codec.compress, parts[0])
        for following in (*parts[1:], None):
            packed = await encoded
            if following is not None:  # it is encoded while this one is sent
                encoded = _in_thread(self._codec.compress, following)
            yield averaging_pb2.AveragingData(
                code=averaging_pb2.PART_FOR_AVERAGING, group_id=group, tensor_part=packed, weight=self.weight
            )
            group = b""

    async def _gathered(self, sender: int, number: int, part: torch.Tensor) -> asyncio.Future[Sum]:
        """A member's part for this reducer is here; wait for those of all others. Their sum is made once for
        all members, so await it in a shield: a cancelled member must not take it from the others."""
        self._come.setdefault(number, {})[sender] = part
        try:
            await self.tensor_part_reducer.accumulate_part(sender, number, NOTHING)
        except asyncio.CancelledError:
            if self.broken:
                raise AllreduceException(self.broken) from None
            raise
        if self.broken:
            raise AllreduceException(self.broken)
        if (come := self._come.pop(number, None)) is not None:
            self._sums[number] = _in_thread(self._sum, come), len(self.sender_peer_ids)
        made, waiting = self._sums.pop(number)
        if waiting > 1:
            self._sums[number] = made, waiting - 1
        return made

    def _sum(self, come: Mapping[int, torch.Tensor]) -> Sum:
        """Of all members' parts, by their senders."""
        peers = self.sender_peer_ids
        weights, parts = [self._weights[peer] for peer in peers], [come[k] for k in range(len(peers))]
        packed, mean = self._codec.as_sent(weighted_mean(parts, weights))
        return Sum(packed, mean, _products(come[peers.index(self.peer_id)], mean, norm(mean)))

    def _keep(self, made: Sum) -> None:
        """Record the findings of a sum of this reducer; one after the other, in their order."""
        self._returned[self.peer_id] = self._returned[self.peer_id].and_of(made.mine)

    async def _accumulate_parts_streaming(
        self, stream: AsyncIterator[averaging_pb2.AveragingData], sender_index: int
    ) -> AsyncIterator[averaging_pb2.AveragingData]:
        # Some parts are read while others are added up, and others are sent.
        async with contextlib.aclosing(ahead(self._sums_of(stream, sender_index), AHEAD)) as sums:
            async for coming in sums:
                packed = (await asyncio.shield(coming)).packed
                yield averaging_pb2.AveragingData(code=averaging_pb2.AVERAGED_PART, tensor_part=packed)

    async def _sums_of(
        self, stream: AsyncIterator[averaging_pb2.AveragingData], sender: int
    ) -> AsyncGenerator[asyncio.Future[Sum]]:
        number = 0
        async with contextlib.aclosing(ahead(self._read(stream), AHEAD)) as read:
            async for coming in read:
                part = await self._scaled_part(sender, number, *await coming)
                yield await self._gathered(sender, number, part)
                number += 1
        if number != len(self._shapes):
            raise AllreduceException(f"it sent {number} of {len(self._shapes)} parts")

    async def _read(
        self, stream: AsyncIterator[averaging_pb2.AveragingData]
    ) -> AsyncGenerator[asyncio.Future[tuple[torch.Tensor, float]]]:
        shapes = iter(self._shapes)
        async for message in stream:
            if (shape := next(shapes, None)) is None:
                raise AllreduceException("it sent more parts than belong to me")
            yield _in_thread(self._read_part, message.tensor_part, shape)

    async def _ban_sender(self, peer_id: PeerID) -> None:
        """hivemind goes on without a lost sender, and each member gets another mean; here the round ends for
        all."""
        received = self.tensor_part_reducer.num_parts_received[self.sender_peer_ids.index(peer_id)]
        if received < self.tensor_part_reducer.num_parts:
            self._break(f"lost {peer_id} after {received} of {self.tensor_part_reducer.num_parts} parts")


async def ahead(items: AsyncGenerator[T], most: int) -> AsyncGenerator[T]:
    """`items` in their order, of which up to `most` are produced ahead; an exception comes after the items
    before it. Close it where you leave early: that closes them, too."""
    places, made = asyncio.Semaphore(most), asyncio.Queue[T | None]()

    async def make() -> None:
        try:
            async with contextlib.aclosing(items):
                await places.acquire()
                async for item in items:
                    made.put_nowait(item)
                    await places.acquire()
        finally:
            made.put_nowait(None)

    making = asyncio.get_running_loop().create_task(make())
    try:
        while (item := await made.get()) is not None:
            places.release()
            yield item
        await making
    finally:
        making.cancel()
        await asyncio.gather(making, return_exceptions=True)


def _products(mine: torch.Tensor, mean: torch.Tensor, size: float) -> InnerProducts:
    """Of a part of mine with its mean, of norm `size`."""
    return InnerProducts(float(mine.reshape(-1) @ mean.reshape(-1)), norm(mine) ** 2, size**2)


def _in_thread(function: Callable[..., T], *args: Any) -> asyncio.Future[T]:
    """Its error counts as retrieved, also where the result is no longer awaited."""
    made = asyncio.get_running_loop().run_in_executor(None, function, *args)
    made.add_done_callback(lambda done: done.cancelled() or done.exception())
    return made


async def _scaled(part: torch.Tensor, share: float) -> torch.Tensor:
    return part if share == 1 else await _in_thread(part.mul_, share)
