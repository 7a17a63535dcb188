"""Messages between the driver of a sharded learner and its ranks: msgpack in frames of
swarm.processes.process, tensors in shared memory.

    driver --order--> stdin of every rank;  rank --answer--> its stdout
    tensors: the Slab, memory that all of them map

One order at a time, one answer from every rank. Large tensors (gradients, weights, moments) never enter a
pipe: an order tells every rank to copy its shards to or from the slab, whose layout is the table of Entries
that the ranks answered at their start. The slab is an anonymous file (memfd): the kernel frees it however its
users end, and the size of /dev/shm does not limit it. Both ends are processes of one peer, so that bad bytes
here are a bug.
"""

from __future__ import annotations

import math
import mmap
import os

import msgspec
import torch
from torch import Tensor

from swarm.core.intake.claimed_logprobs import ClaimCheck
from swarm.settings.config import Run
from swarm.types import BatchRewards, Group, Struct


class Settings(Struct):
    """Settings that all ranks share."""

    model: str
    """The run's model folder."""
    base: str
    """The folder with its weights: another one for an adapter on a Hub model."""
    run: Run
    dtype: str
    """Of forward and backward pass: `float32` or `bfloat16`."""
    checkpointing: bool


class Start(Struct, tag="start"):
    """The first order: a rank's settings."""

    settings: Settings
    rank: int
    ranks: int
    device: str
    """`cpu`, or `cuda:N`."""
    store: int
    """Descriptor of the file in which the ranks find each other."""
    slab: int
    """Descriptor of the slab."""
    timeout: float
    """Seconds after which a collective counts as hung."""


class SlabEntry(Struct):
    """A tensor of the layout. Entries lie one after the other, in the order of the module's parameters, then
    its buffers."""

    name: str
    """Its name in the module without shards; of several tied names the first."""
    released: str
    """Its name in a release."""
    shape: tuple[int, ...]
    trained: bool
    """False for buffers: they are released, and have neither gradient nor moments."""

    @property
    def numel(self) -> int:
        return math.prod(self.shape)


class ShardStarted(Struct, tag="started"):
    """The rank is ready; all ranks answer the same layout."""

    entries: tuple[SlabEntry, ...]


class Share(Struct):
    """A micro-batch of one rank; without groups, a pass with a gradient of zero."""

    groups: tuple[Group, ...]
    prompts: tuple[str, ...]
    rewards: tuple[tuple[float, ...], ...]


class Learn(Struct, tag="learn"):
    """One gradient. All ranks get equally many shares in each half; the gradient goes to the slab,
    float32."""

    version: int
    halves: tuple[tuple[Share, ...], tuple[Share, ...]]
    """The same cut through the batch on all ranks, for the cosine between its two halves."""
    spare: Share
    """One group, for passes with a gradient of zero."""
    lengths: tuple[tuple[int, ...], ...]
    """Lengths of the whole batch's completions, group by group, for the objective's Total."""
    rewards: tuple[tuple[float, ...], ...]
    others: tuple[BatchRewards, ...]
    """Rewards of the other learners' batches in the same round, for the Total as well."""


class ShareResult(Struct):
    """Metrics of one micro-batch, and its completions' advantages and weights."""

    metrics: dict[str, float]
    advantage: tuple[float, ...]
    weight: tuple[float, ...]
    checks: tuple[ClaimCheck, ...]
    """The claim check of each of its groups."""


class Learned(Struct, tag="learned"):
    """A rank's part of one gradient; the gradient itself is in the slab."""

    parts: tuple[ShareResult, ...]
    """One for each share with groups, in order."""
    half: float
    """Sum of squares over this rank's shards of the first half's gradient."""
    rest: float
    """The same of the second half's gradient."""
    dot: float
    """Dot product of the two."""
    peak: int
    """Bytes in use at most, as microbatch.PeakMemory counts them."""
    padded: str
    """As `Policy.padded`."""


class ShardStep(Struct, tag="step"):
    """One step of AdamW along the gradient in the slab times `scale`."""

    lr: float
    scale: float


class Write(Struct, tag="write"):
    """Copy to the slab: for each of `what`, all entries; those that the optimizer holds no moments of are
    zero."""

    what: tuple[str, ...]
    """`weight`, `exp_avg`, `exp_avg_sq`."""
    dtype: str


class Read(Struct, tag="read"):
    """Take values over from the slab, as `Write` lays them out."""

    what: tuple[str, ...]
    dtype: str
    steps: int = 0
    """Optimizer steps behind the moments that are read."""
    buffers: bool = True
    """Take buffers over too; a state has none."""
    exact: bool = True
    """Take the values themselves; else masters follow them, as swarm.learn.files.weights says."""


class Fresh(Struct, tag="fresh"):
    """Forget the moments."""


class ShardDone(Struct, tag="done"):
    """The order is executed."""


class ShardFailed(Struct, tag="failed"):
    """The rank cannot go on."""

    reason: str
    memory: bool
    """It ran out of memory."""


Order = Start | Learn | ShardStep | Write | Read | Fresh
Answer = ShardStarted | Learned | ShardDone | ShardFailed
ORDERS = msgspec.msgpack.Decoder(Order)
encode = msgspec.msgpack.encode
ANSWERS = msgspec.msgpack.Decoder(Answer)


class Slab:
    """Memory shared between processes through an inherited descriptor. One user writes a place at a time."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor

    @classmethod
    def new(cls) -> Slab:
        """An empty slab."""
        return cls(os.memfd_create("swarm-learner"))

    def reserve(self, nbytes: int) -> None:
        """Make it at least this large. The driver does, before the ranks map it."""
        if os.fstat(self.descriptor).st_size < nbytes:
            os.ftruncate(self.descriptor, nbytes)

    def tensor(self, count: int, dtype: torch.dtype) -> Tensor:
        """(count,) from its beginning. Its memory is the slab's: after `release` it reads as zeros."""
        if count == 0:
            return torch.zeros(0, dtype=dtype)
        return torch.frombuffer(mmap.mmap(self.descriptor, count * dtype.itemsize), dtype=dtype, count=count)

    def release(self) -> None:
        """Give the memory back to the machine; the size stays, so that no mapping of it can fault."""
        size = os.fstat(self.descriptor).st_size
        if size:
            with mmap.mmap(self.descriptor, size) as whole:
                whole.madvise(mmap.MADV_REMOVE)

    def close(self) -> None:
        os.close(self.descriptor)
