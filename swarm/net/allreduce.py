"""The mean over a group: hivemind's butterfly all-reduce, changed so that all members get the same bytes or none does.

    my part of everybody -> weighted mean -> encoded once -> everybody (me too)

In come a group, its weights and a flat tensor; out come the means. Invariants: every member ends with the bytes that each
reducer encoded; sizes are compared before anything is allocated; what is lost, misshapen or not finite breaks the round at its
reducer for all senders.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from typing import Any, AsyncIterator  # noqa: UP035 (hivemind reads the hints of calls, and knows this one only)

import numpy as np
import torch
from hivemind.averaging.allreduce import AllreduceException, AllReduceRunner
from hivemind.compression import Float16Compression, NoCompression, serialize_torch_tensor
from hivemind.p2p import PeerID
from hivemind.proto import averaging_pb2, runtime_pb2
from hivemind.utils.asyncio import aiter_with_timeout, attach_event_on_finished

CODECS = {"float16": (Float16Compression, np.float16), "none": (NoCompression, np.float32)}


class Runner(AllReduceRunner):  # type: ignore[misc]
    """Butterfly all-reduce that gives all members the same bytes, or breaks."""

    def __init__(self, *, weights: dict[PeerID, float], codec: str, **kwargs: Any) -> None:
        compression, self._dtype = CODECS[codec]
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
            await asyncio.gather(work, cut, return_exceptions=True)

    def exchanged(self) -> dict[str, int]:
        """Member -> bytes of parts that a complete round got from it, and sent there: its own part's and mine."""
        parts = [sum(map(math.prod, shapes)) * np.dtype(self._dtype).itemsize for shapes in self._shapes]
        mine = parts[self.ordered_peer_ids.index(self.peer_id)]
        return {str(peer): part + mine for peer, part in zip(self.ordered_peer_ids, parts, strict=True) if peer != self.peer_id}

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
        async with contextlib.aclosing(stream):
            async for message in aiter_with_timeout(stream, self.reducer_timeout):
                if message.code != averaging_pb2.AVERAGED_PART:
                    raise AllreduceException(f"it sent {averaging_pb2.MessageCode.Name(message.code)}")
                part = await asyncio.get_running_loop().run_in_executor(None, self._unpack, message.tensor_part, shapes[number])
                self.tensor_part_container.register_processed_part(index, number, part)
                number += 1
                if number == len(shapes):  # the reducer waits for me to hang up
                    break
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
