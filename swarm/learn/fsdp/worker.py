"""The process of one rank of a sharded learner: one device, its shards of all weights (`python -m
swarm.learn.fsdp.worker`).

    stdin --Start--> load, shard --ShardStarted--> stdout, then
          --order--> compute, in lockstep with the other ranks --answer--> stdout, again and again

FSDP2 splits each parameter by rows: rank r of n holds ceil(rows / n) of them from row r * ceil(rows / n) on,
as torch.chunk cuts. So a rank's shards are contiguous pieces of the flat vector of the one-process learner,
and it copies them to and from the slab without the other ranks. Forward and backward passes are collective:
all ranks make equally many, and gradients are summed, not averaged. The optimizer works on the shards as
plain tensors: AdamW never looks across elements.

Ends when its stdin does, with its driver. A failure is answered once, then the rank waits to be ended. Not
handled here: which rank gets which groups, restarting a lost rank.
"""

from __future__ import annotations

import signal
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, NoReturn

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard

from swarm.learn import objectives
from swarm.learn.files import weights
from swarm.learn.fsdp.messages import (
    ORDERS,
    Answer,
    Fresh,
    Learn,
    Learned,
    Order,
    Read,
    Settings,
    ShardDone,
    ShardFailed,
    ShardStarted,
    ShardStep,
    Share,
    ShareResult,
    Slab,
    SlabEntry,
    Start,
    Write,
    encode,
)
from swarm.learn.learners import microbatch
from swarm.learn.learners.base_learner import GradientWork
from swarm.learn.learners.learner import batch_of
from swarm.learn.learners.optimizers import MasterOptimizer
from swarm.learn.models import tokenization
from swarm.learn.models.model import load_policy
from swarm.learn.models.policy import LanguageModel, Policy, TokenScores
from swarm.processes.process import Pipe
from swarm.processes.start import die_with_parent

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


@dataclass(frozen=True)
class Piece:
    """The part of an entry that this rank holds."""

    entry: SlabEntry
    local: Tensor
    """The shard itself, or a whole buffer; flat."""
    parameter: nn.Parameter | None
    start: int
    """In the layout, elements."""

    @property
    def place(self) -> slice:
        """Its elements in the layout."""
        return slice(self.start, self.start + self.local.numel())


class FsdpRoot(nn.Module):
    """The root module of FSDP: parameters stay gathered during a whole job, since log-probabilities need the
    output embedding's weight outside of the model's forward."""

    def __init__(self, policy: Policy) -> None:
        super().__init__()
        self.module, self.ends = policy.module, policy.ends
        self._policy = policy

    def forward(self, job: Callable[[], TokenScores]) -> TokenScores:
        return job()

    def logprobs(self, *args: Any) -> TokenScores:
        scored: TokenScores = self(lambda: self._policy.logprobs(*args))
        return scored


class Rank:
    """One rank: executes the driver's orders on its shards."""

    def __init__(self, start: Start) -> None:
        self._run, self._slab = start.settings.run, Slab(start.slab)
        self._objective = objectives.objective(self._run.objective.name, self._run.objective.options)
        device = torch.device(start.device)
        if device.type == "cuda":
            torch.cuda.set_device(device)
            torch.cuda.init()
        else:
            torch.set_num_threads(1)
        store = dist.FileStore(f"/proc/self/fd/{start.store}", start.ranks)
        store.set_timeout(timedelta(days=1))  # the driver has the deadline of a start
        backend = "nccl" if device.type == "cuda" else "gloo"
        dist.init_process_group(
            backend,
            store=store,
            rank=start.rank,
            world_size=start.ranks,
            timeout=timedelta(seconds=start.timeout),
        )
        with _in_turn(store, start):
            self._policy, lasting = _load(start.settings)
            self._whole = _shard(FsdpRoot(self._policy), start, device)
        self._warm_up(device)
        self._gauge = microbatch.PeakMemory(device)
        self.entries, module = tuple(entry for entry, _ in lasting), self._policy.module
        self._pieces = _pieces(lasting, dict(module.named_parameters()), dict(module.named_buffers()), start)
        self._size = sum(entry.numel for entry in self.entries)
        self._trained = [piece for piece in self._pieces if piece.parameter is not None]
        self._vector = sum(entry.numel for entry in self.entries if entry.trained)
        self._optimizer = MasterOptimizer(
            {piece.entry.name: nn.Parameter(piece.local) for piece in self._trained},
            self._run.optimizer,
            rounds_later=start.settings.dtype == "bfloat16",
        )

    def execute(self, order: Order) -> Answer:
        """Execute one order, in lockstep with the other ranks."""
        match order:
            case Learn():
                return self._learn(order)
            case ShardStep():
                self._optimizer.prepare()
                vector = self._slab.tensor(self._vector, torch.float32)
                mine = torch.cat([vector[piece.place] for piece in self._trained])
                self._optimizer.step(mine, order.scale, order.lr)
            case Write():
                self._write(order)
            case Read():
                self._read(order)
            case Fresh():
                self._optimizer.forget()
            case Start():
                raise ValueError("this rank has started already")
        return ShardDone()

    def _warm_up(self, device: torch.device) -> None:
        """A pass without gradient: collectives work, and FSDP has settled where the shards lie."""
        token = torch.zeros(1, 1, dtype=torch.long, device=device)
        with torch.no_grad():
            self._whole(lambda: self._whole.module(input_ids=token, use_cache=False))
        self._whole.reshard()  # the root keeps its parameters whole for a backward pass

    # --- gradient -------------------------------------------------------------------------------------------

    def _learn(self, order: Learn) -> Learned:
        self._gauge.peak = 0
        self._gauge.start()
        total = objectives.Total.of(order.lengths, order.rewards, order.others)
        self._whole.zero_grad(set_to_none=True)
        parts: list[ShareResult] = []
        halves: list[list[Tensor]] = []
        for shares in order.halves:
            for share in shares:
                if share.groups:
                    parts.append(self._pass(share, total, order.version))
                else:
                    self._empty_pass(order.spare)
            halves.append([gradient.clone() for gradient in self._gradients()])
        first, both = halves
        vector = self._slab.tensor(self._vector, torch.float32)
        for piece, gradient in zip(self._trained, both, strict=True):
            vector[piece.place].copy_(gradient)
        self._whole.zero_grad(set_to_none=True)
        for gradient, part in zip(both, first, strict=True):
            gradient -= part
        self._gauge.rise()
        return Learned(
            parts=tuple(parts),
            half=_dot(first, first),
            rest=_dot(both, both),
            dot=_dot(first, both),
            peak=self._gauge.peak,
            padded=self._policy.padded,
        )

    def _pass(self, share: Share, total: objectives.Total, version: int) -> ShareResult:
        batch, checks = batch_of(
            self._whole, self._run, GradientWork(share.groups, share.prompts, share.rewards, total), version
        )
        part = objectives.loss(self._objective, batch)
        part.value.backward()
        advantage, weight = tuple(part.advantage.tolist()), tuple(part.weight.tolist())
        return ShareResult(metrics=part.metrics, advantage=advantage, weight=weight, checks=tuple(checks))

    def _empty_pass(self, spare: Share) -> None:
        """The collectives of a pass, and a gradient of zero."""
        row = torch.frombuffer(bytearray(spare.groups[0].tokens.data), dtype=torch.int32)[:1].tolist()
        scored = self._whole.logprobs([spare.prompts[0]], [row], self._run.sampling.temperature)
        scored.logp.backward(torch.zeros_like(scored.logp))

    def _gradients(self) -> list[Tensor]:
        """Of my shards, flat; zero where nothing has flowed."""
        return [
            (
                torch.zeros_like(piece.local)
                if piece.parameter is None or piece.parameter.grad is None
                else _local(piece.parameter.grad).flatten()
            )
            for piece in self._trained
        ]

    # --- copies ---------------------------------------------------------------------------------------------

    def _write(self, order: Write) -> None:
        held = self._optimizer.dump()
        slab = self._slab.tensor(self._size * len(order.what), DTYPES[order.dtype])
        for i, what in enumerate(order.what):
            place = slab[i * self._size : (i + 1) * self._size]
            for piece in self._pieces:
                value = held.get(f"{what}/{piece.entry.name}", piece.local if what == "weight" else None)
                place[piece.place].copy_(torch.zeros_like(piece.local) if value is None else value.flatten())

    @torch.no_grad()
    def _read(self, order: Read) -> None:
        slab = self._slab.tensor(self._size * len(order.what), DTYPES[order.dtype])
        tensors: dict[str, Tensor] = {}
        for i, what in enumerate(order.what):
            place = slab[i * self._size : (i + 1) * self._size]
            for piece in self._pieces:
                if what == "weight" and piece.parameter is not None and not order.exact:
                    weights.follow(piece.local, place[piece.place])
                elif what == "weight" and (piece.parameter is not None or order.buffers):
                    piece.local.copy_(place[piece.place])
                if piece.parameter is not None:
                    tensors[f"{what}/{piece.entry.name}"] = place[piece.place]
                    tensors[f"step/{piece.entry.name}"] = torch.tensor(float(order.steps))
        if len(order.what) > 1:
            self._optimizer.load(tensors)
        else:
            self._optimizer.refresh(order.exact)


def _load(settings: Settings) -> tuple[LanguageModel, list[tuple[SlabEntry, Tensor]]]:
    """The whole model on the CPU, and what of it is trained or released, in the order of the layout."""
    run = settings.run
    lora = run.lora if run.model.training == "lora" else None
    # masters lie in the shards; a base that is only read needs none
    dtype = "float32" if lora is None else settings.dtype
    model = load_policy(Path(settings.base), "cpu", dtype, lora=lora)
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.data = parameter.data.float()
    if settings.checkpointing and not microbatch.recompute(model):
        raise ValueError(
            "peer.learner.checkpointing = 'on': this model has no layers that could be recomputed; use 'off'"
        )
    return LanguageModel(model, tokenization.of_run(Path(settings.model), run), in_step=True), _layout(model)


def _layout(model: nn.Module) -> list[tuple[SlabEntry, Tensor]]:
    state = weights.state(model)
    names = {_where(state[name]): name for name in weights.own_names(state)}
    found: list[tuple[SlabEntry, Tensor]] = []
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        trained = isinstance(tensor, nn.Parameter) and tensor.requires_grad
        released = names.pop(_where(tensor), None)
        if released is None and trained:
            raise ValueError(
                f"{name} is trained and would not be released: this architecture cannot be split"
            )
        if released is not None:
            found.append(
                (SlabEntry(name=name, released=released, shape=tuple(tensor.shape), trained=trained), tensor)
            )
    if names:
        raise ValueError(
            f"{sorted(names.values())[:3]} are released and are not parameters: this architecture cannot be"
            " split"
        )
    return found


def _shard(whole: FsdpRoot, start: Start, device: torch.device) -> Any:
    """Each of the model's layers is gathered when it computes; the parts around them (embeddings, norm, head)
    with the whole.

    Moves them to the device, a layer at a time, with their buffers.
    """
    mesh = dist.init_device_mesh(device.type, (start.ranks,))
    bf16 = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    policy = bf16 if start.settings.dtype == "bfloat16" else MixedPrecisionPolicy()
    kinds = set(getattr(whole.module, "_no_split_modules", None) or ())
    layers = [module for module in whole.modules() if type(module).__name__ in kinds]
    for module in (*layers, whole):
        fully_shard(module, mesh=mesh, mp_policy=policy)
    for module in whole.modules():
        if isinstance(module, FSDPModule):
            # Groups are summed over ranks: their share of the batch is in the objective's Total already.
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)  # gloo has no reduction that multiplies on its way
    return whole


def _pieces(
    lasting: list[tuple[SlabEntry, Tensor]],
    parameters: Mapping[str, nn.Parameter],
    buffers: Mapping[str, Tensor],
    start: Start,
) -> list[Piece]:
    pieces, offset = [], 0
    for entry, _ in lasting:
        if entry.name in parameters:
            parameter = parameters[entry.name]
            local = _local(parameter).detach()
            rows = -(-entry.shape[0] // start.ranks)
            first = min(start.rank * rows, entry.shape[0])
            assert len(local) == min(rows, entry.shape[0] - first), f"{entry.name} is not split by rows"
            skipped = first * (entry.numel // max(entry.shape[0], 1))
            pieces.append(
                Piece(entry, local.flatten(), parameter if entry.trained else None, offset + skipped)
            )
        else:
            pieces.append(Piece(entry, buffers[entry.name].flatten(), None, offset))
        offset += entry.numel
    return pieces


def _local(tensor: Any) -> Tensor:
    """The shard of a DTensor, which shares its memory."""
    local: Tensor = tensor.to_local()
    return local


def _dot(a: list[Tensor], b: list[Tensor]) -> float:
    return sum(float(torch.dot(x.double(), y.double())) for x, y in zip(a, b, strict=True))


def _where(tensor: Tensor) -> tuple[int, tuple[int, ...]]:
    return tensor.data_ptr(), tuple(tensor.shape)


@contextmanager
def _in_turn(store: dist.Store, start: Start) -> Iterator[None]:
    """One rank after the other: the machine holds one whole model at a time beside the shards."""
    if start.rank > 0:
        store.wait([f"loaded-{start.rank - 1}"])
    yield
    store.set(f"loaded-{start.rank}", "")


# --- the process --------------------------------------------------------------------------------------------


def main() -> NoReturn:
    """Execute orders from stdin until it ends."""
    # a whole session is asked to end: the driver still needs the shards
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    die_with_parent()
    pipe = Pipe()
    next_order = pipe.listen()
    rank: Rank | None = None
    while True:
        order = ORDERS.decode(next_order())
        try:
            if rank is None:
                assert isinstance(order, Start)
                rank = Rank(order)
                answer: Answer = ShardStarted(entries=rank.entries)
            else:
                answer = rank.execute(order)
        except Exception as error:  # any failure is reported to the driver, which ends all ranks
            traceback.print_exc()
            where = traceback.extract_tb(error.__traceback__)[-1]
            reason = f"{type(error).__name__}: {error} ({Path(where.filename).name}:{where.lineno})"
            answer = ShardFailed(reason=reason, memory=microbatch.ran_out(error))
        pipe.send(encode(answer))


if __name__ == "__main__":
    sys.exit(main())
