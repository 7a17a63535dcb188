"""All-reduce of a group: hivemind's butterfly, changed so that all members get the same bytes or none.

    my part of all members' tensors -> weighted mean -> encoded once -> all members (me too)

In come a group, what its members claimed and a flat tensor; the means take the place of its values, part by
part. Invariants: every member ends with the bytes that each reducer encoded; sizes are compared before
anything is allocated; a part that is lost or of another shape breaks the round for all senders, and leaves
some values and some means. A mean is added up in the order of the members, so `mean_again` makes the same
one of their tensors. A value that is too large breaks no round
(swarm.core.standing): a reducer scales parts down that exceed their sender's announced norm, all members
scale means down that exceed the largest possible mean, and take zeros for parts and means that are not
finite. From three members on a reducer makes the clipped mean of each part (swarm.core.clipping). Each member
notes how much of its own part is in the mean that came back (swarm.core.reducers).
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import (
    AsyncIterator,
    Callable,
    Collection,
    Mapping,
    Sequence,
)
from itertools import accumulate
from typing import (
    Any,
    TypeVar,
)

import torch
from blake3 import blake3
from hivemind.averaging.allreduce import AllreduceException, AllReduceRunner
from hivemind.averaging.partition import TensorPartContainer, TensorPartReducer
from hivemind.p2p import PeerID
from hivemind.proto import averaging_pb2, runtime_pb2

from swarm.core.clipping import Agreement, Cosines
from swarm.core.reducers import presence
from swarm.core.standing import Allowance, Claim, Standing, largest_mean_norm, standings
from swarm.core.step_recipe import MeanRecipe
from swarm.net import sketch
from swarm.net.clipping import Mean, Seen, combine
from swarm.net.codec import Codec
from swarm.net.norm import norm

T = TypeVar("T")

NOTHING = torch.empty(0)

FAST = 16_000_000
"""Bytes a second that a member gets in a round of fast lines, and sends: parts of the next one go past p2pd
(swarm.net.paced). On a line that is full p2pd loses nothing, and two connections to each other member hold up
one another's parts: at 20 Mbit/s for longer than a member is patient."""


class Runner(AllReduceRunner):  # type: ignore[misc]
    """Butterfly all-reduce that gives all members the same bytes, or breaks."""

    def __init__(
        self,
        *,
        claims: Mapping[PeerID, Claim],
        groups: int,
        codec: Codec,
        out: Collection[int] = (),
        key: int = 0,
        **kwargs: Any,
    ) -> None:
        """`groups`: those of the run's whole batch; the members at `out` are left out. What others send here
        is sketched by `key`; 0: is not."""
        super().__init__(weight=1.0, compression=codec, **kwargs)
        self.broken, self.cut = "", asyncio.Event()
        self._codec = codec
        judged = standings([claims[peer] for peer in self.ordered_peer_ids], groups)
        self._standing: dict[PeerID, Standing] = dict(zip(self.ordered_peer_ids, judged, strict=True))
        largest = largest_mean_norm([claims[peer] for peer in self.ordered_peer_ids], judged)
        self._sent = {peer: Allowance(claims[peer].norm) for peer in self.ordered_peer_ids}
        self._reduced = {peer: Allowance(largest) for peer in self.ordered_peer_ids}
        self._parts = [
            [part for part, _ in parts] for parts in self.tensor_part_container._input_parts_by_peer
        ]
        self._mean: tuple[int, asyncio.Future[tuple[runtime_pb2.Tensor, torch.Tensor]]] | None = None
        # Parts come in any order, and are added up in that of the members: hivemind's reducer, which adds as
        # they come, is given none of their values and tells when all are here.
        mine = self.parts_for_local_averaging
        self._shapes = [part.shape for part in mine]
        self.tensor_part_reducer = TensorPartReducer([torch.Size([0])] * len(mine), len(self.sender_peer_ids))
        self._come: dict[int, dict[int, torch.Tensor]] = {}
        """Number of a part of mine -> index of a sender -> that part, until the mean is made."""
        self._seen = {peer: Seen() for peer in self.ordered_peer_ids}
        self._returned = {peer: Agreement() for peer in self.ordered_peer_ids}
        """Reducer -> my parts and its means."""
        self._got = {peer: blake3() for peer in self.ordered_peer_ids}
        """Reducer -> the bytes of its means."""
        index = self.ordered_peer_ids.index(self.peer_id)
        sizes = [part.numel() for part in self._parts[index]]
        first = sum(part.numel() for parts in self._parts[:index] for part in parts)
        self.spans = tuple(zip(accumulate([first, *sizes]), sizes, strict=False))
        """Of my parts in the flat tensor."""
        others = [peer for peer in self.sender_peer_ids if peer != self.peer_id] if key and sizes else []
        self._key, self._sketches = key, {peer: sketch.empty() for peer in others}
        left_out = [self.ordered_peer_ids[k] for k in out]
        self._out = [k for k, peer in enumerate(self.sender_peer_ids) if peer in left_out]

    def scaled(self) -> dict[str, float]:
        """Member -> factor by which its gradient, or its parts and means beyond the announced norm, were
        scaled down, or its distance from the means was cut, as far as this member knows."""
        held = {
            peer: min(self._sent[peer].least, self._reduced[peer].least) * self._seen[peer].share
            for peer in self.ordered_peer_ids
        }
        shares = {str(peer): one.share * held[peer] for peer, one in self._standing.items()}
        return {peer: share for peer, share in shares.items() if share < 1}

    def sketched(self) -> dict[str, bytes]:
        """Member -> sketch of what it sent here."""
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
            self._p2p.carried = int(carried) if carried >= FAST else 0
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

    def _scaled_part(
        self, sender: int, number: int, packed: runtime_pb2.Tensor, shape: torch.Size
    ) -> torch.Tensor:
        """A member's part, sketched as it came, scaled down where it exceeds the announced norm; zeros where
        it is not finite."""
        peer = self.sender_peer_ids[sender]
        part = self._codec.read(packed, shape)
        if not math.isfinite(size := norm(part)):
            self._sent[peer].least = 0.0
            return part.zero_()
        if (total := self._sketches.get(peer)) is not None:
            sketch.add(total, part, self._key, self.spans[number][0])
        return _scaled(part, self._standing[peer].share * self._sent[peer].take(size))

    def _scaled_mean(self, reducer: PeerID, packed: runtime_pb2.Tensor, mine: torch.Tensor) -> torch.Tensor:
        """A reducer's mean of a part of which `mine` is mine, scaled down where it exceeds the largest
        possible norm, zeros where it is not finite: the same at all members."""
        data = self._codec.data(packed, mine.shape)
        mean = self._codec.decoded(data, mine.shape)
        self._got[reducer].update(data)
        if math.isfinite(size := norm(mean)):
            share = self._reduced[reducer].take(size)
            mean, size = _scaled(mean, share), size * share
        else:
            self._reduced[reducer].least = size = 0.0
            mean.zero_()
        self._note(reducer, mine, mean, size)
        return mean

    def _note(self, reducer: PeerID, mine: torch.Tensor, mean: torch.Tensor, size: float) -> None:
        """`size`: the norm of the mean."""
        both = float(mine.reshape(-1) @ mean.reshape(-1))
        its = Agreement(both, norm(mine) ** 2, size**2)
        self._returned[reducer] = self._returned[reducer].and_of(its)

    def presences(self) -> dict[str, float]:
        """Reducer of my parts -> how much of them is in its means (swarm.core.reducers)."""
        mine = self._standing[self.peer_id]
        if mine.share < 1:
            return {}  # how much of it belongs in the mean is for the others to say
        share = mine.weight / sum(one.weight for one in self._standing.values())
        returned = self._returned.items()
        return {str(peer): presence(its, share) for peer, its in returned if its.mine * share > 0}

    def mean(self) -> bytes:
        """Digest of all means, as their reducers encoded them: the same at all members."""
        return blake3(b"".join(its.digest() for its in self._got.values())).digest()

    async def _communicate_with_peer(self, peer_id: PeerID) -> None:
        index = self.ordered_peer_ids.index(peer_id)
        try:
            await (self._reduce_own(index) if peer_id == self.peer_id else self._exchange(peer_id, index))
        except Exception as error:
            self._break(f"lost the parts of {peer_id}: {error or type(error).__name__}")
            raise

    async def _reduce_own(self, index: int) -> None:
        sender = self.sender_peer_ids.index(self.peer_id)
        share = self._standing[self.peer_id].share
        for number, part in enumerate(self._parts[index]):
            await self._gathered(sender, number, _scaled(part, share))
            _, rounded = await self._as_sent(number)
            part.copy_(rounded)

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

    async def _gathered(self, sender: int, number: int, part: torch.Tensor) -> None:
        """A member's part of mine is here; wait for those of all others."""
        self._come.setdefault(number, {})[sender] = part
        try:
            await self.tensor_part_reducer.accumulate_part(sender, number, NOTHING)
        except asyncio.CancelledError:
            if self.broken:
                raise AllreduceException(self.broken) from None
            raise
        if self.broken:
            raise AllreduceException(self.broken)

    async def _as_sent(self, number: int) -> tuple[runtime_pb2.Tensor, torch.Tensor]:
        """A mean as all members get it, encoded once for all of them. All have taken the one before it: each
        took it before it sent its next part."""
        if self._mean is None or self._mean[0] != number:
            self._mean = number, _in_thread(self._encoded, number)
        # One that is cancelled does not take it from the others.
        return await asyncio.shield(self._mean[1])

    def cosines(self) -> dict[str, Cosines]:
        """Member -> cosines of its parts, of mine, with those of the others; nothing where none is mine."""
        mine = self.tensor_part_reducer.num_parts
        return {str(peer): seen.cosines for peer, seen in self._seen.items()} if mine else {}

    def _encoded(self, number: int) -> tuple[runtime_pb2.Tensor, torch.Tensor]:
        """The mean of a part of mine, encoded."""
        come, peers = self._come.pop(number), self.sender_peer_ids
        weights = [self._standing[peer].weight for peer in peers]
        parts = [come[k] for k in range(len(peers))]
        made = combine(parts, weights, self._out)
        for peer, kept, agreement in zip(peers, made.kept, made.agreements, strict=True):
            self._seen[peer].add(kept, agreement)
        packed, mean = self._codec.as_sent(_value(made, parts, weights))
        self._got[self.peer_id].update(packed.buffer)
        self._note(self.peer_id, come[peers.index(self.peer_id)], mean, norm(mean))
        return packed, mean

    async def _accumulate_parts_streaming(
        self, stream: AsyncIterator[averaging_pb2.AveragingData], sender_index: int
    ) -> AsyncIterator[averaging_pb2.AveragingData]:
        number, shapes = 0, self._shapes
        async for message in stream:
            if number >= len(shapes):
                raise AllreduceException("it sent more parts than belong to me")
            part = await _in_thread(
                self._scaled_part, sender_index, number, message.tensor_part, shapes[number]
            )
            await self._gathered(sender_index, number, part)
            packed, _ = await self._as_sent(number)
            number += 1
            yield averaging_pb2.AveragingData(code=averaging_pb2.AVERAGED_PART, tensor_part=packed)
        if number != len(shapes):
            raise AllreduceException(f"it sent {number} of {len(shapes)} parts")

    async def _ban_sender(self, peer_id: PeerID) -> None:
        """hivemind goes on without a lost sender, and each member gets another mean; here the round ends for
        all."""
        received = self.tensor_part_reducer.num_parts_received[self.sender_peer_ids.index(peer_id)]
        if received < self.tensor_part_reducer.num_parts:
            self._break(f"lost {peer_id} after {received} of {self.tensor_part_reducer.num_parts} parts")


def mean_again(
    vectors: Sequence[torch.Tensor], recipe: MeanRecipe, groups: int, compression: str
) -> torch.Tensor:
    """The mean of flat float32 `vectors`, of the recipe's members in their order, bit for bit as a round of
    these members made it; `groups` are those of the run's whole batch."""
    codec, mean = Codec(compression), torch.empty_like(vectors[0])
    claims = [Claim(one.weight, one.norm, one.usual) for one in recipe.members]
    out = [k for k, one in enumerate(recipe.members) if one.out]
    judged = standings(claims, groups)
    fractions, weights = [one.share for one in recipe.members], [one.weight for one in judged]
    of_each = [
        TensorPartContainer([one], fractions, compression=codec, part_size_bytes=recipe.part)
        for one in (*vectors, mean)
    ]
    for reducer, into in enumerate(of_each[-1]._input_parts_by_peer):
        allowed = [Allowance(claim.norm) for claim in claims]
        for number, (part, _) in enumerate(into):
            come = []
            for k, container in enumerate(of_each[:-1]):
                its, _ = container._input_parts_by_peer[reducer][number]
                share = judged[k].share
                if k != reducer:
                    its = codec.read(codec.compress(its), its.shape)
                    share *= allowed[k].take(norm(its))
                come.append(its * share if share != 1 else its)
            value = _value(combine(come, weights, out), come, weights)
            part.copy_(codec.as_sent(value)[1])
    return mean


def _value(made: Mean, parts: Sequence[torch.Tensor], weights: Sequence[float]) -> torch.Tensor:
    """What was made of the parts: where nothing was clipped, their weighted mean."""
    if made.value is not None:
        return made.value
    total = torch.zeros_like(parts[0])
    for part, weight in zip(parts, weights, strict=True):
        total.add_(part, alpha=weight)
    return total.div_(sum(weights))


def _in_thread(function: Callable[..., T], *args: Any) -> asyncio.Future[T]:
    """Its error is one that somebody sees, also where nobody waits for it any more."""
    made = asyncio.get_running_loop().run_in_executor(None, function, *args)
    made.add_done_callback(lambda done: done.cancelled() or done.exception())
    return made


def _scaled(part: torch.Tensor, share: float) -> torch.Tensor:
    return part if share == 1 else part.mul_(share)
