"""A learner sharded over several devices of one machine (FSDP2).

    peer's process: ShardedLearner --orders, groups--> ranks (swarm.learn.fsdp.worker), one a device
    slab (memory of all of them):  gradient, weights, moments

The driver holds no shard and joins no collective, so that a rank that dies does not take the peer along. It
splits a batch: each half, group by group, evenly over the ranks, in micro-batches; a rank with fewer of them
makes empty passes, since all must make equally many. An objective's statistics over the whole batch are known
before any pass (objectives.Total), so the sum over ranks is the gradient of one process up to rounding;
vector, weights and state have its order and its formats.

When a rank is lost (`RankLost`), all are, and with them weights and moments: the version is -1 then, and the
next `load` or `load_state` starts new ranks with a fresh optimizer; after one that ran out of memory with
smaller micro-batches, then with recomputed activations. Not handled here: models in 4 or 8 bits, several
machines, dead devices.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

import torch
from torch import Tensor

from swarm.core.gradient_checks.inner_products import InnerProducts
from swarm.core.intake.claimed_logprobs import objection
from swarm.learn import objectives
from swarm.learn.files import weights
from swarm.learn.files.release_file import ReleaseFile
from swarm.learn.fsdp.driver import RankLost, Ranks
from swarm.learn.fsdp.messages import (
    Answer,
    Fresh,
    Learn,
    Learned,
    Order,
    Read,
    Settings,
    ShardStep,
    Share,
    SlabEntry,
    Write,
)
from swarm.learn.learners.base_learner import BaseLearner, GradientResult, GradientWork, GroupResult
from swarm.learn.learners.microbatch import OutOfMemory
from swarm.learn.models.model import dtype_of
from swarm.settings.config import Run, Training
from swarm.storage.image import MakeDraft, in_memory
from swarm.storage.weights import Weights

PATIENCE = 600.0
"""Seconds for one order: a gradient of hundreds of long groups, or tens of GB to the slab and back."""

MOMENTS = ("exp_avg", "exp_avg_sq")


class ShardedLearner(BaseLearner):
    """`close` it; its ranks end with it otherwise, or with the process."""

    saves_beside = False  # the ranks, which have the state, do one thing at a time

    def __init__(
        self,
        model: Path,
        run: Run,
        devices: Sequence[str],
        settings: Training | None = None,
        base: Path | None = None,
        patience: float = PATIENCE,
    ) -> None:
        """A rank on each of `devices`, all `cpu` or `cuda:N`; `base` is the folder of the weights when it is
        not `model`.

        Raises ValueError for a run that cannot be split, RankLost when the ranks do not come up.
        """
        super().__init__(run, settings)
        if run.model.training == "qlora":
            raise ValueError(
                "a base in 4 bits cannot be split over several devices: set peer.learner.gpus to 1, or"
                " run.model.training to lora"
            )
        if self.objective.has_reference:
            raise ValueError(
                "a KL term against the reference needs version 0 beside the policy, which a model that is"
                " split over several devices does not have: set peer.learner.gpus to 1, or take"
                " kl_against=sampler in a new run"
            )
        if run.optimizer.name != "adamw":
            raise ValueError(
                f"the moments of {run.optimizer.name} are blocks of whole tensors and cannot be split over"
                " several devices: set peer.learner.gpus to 1, or run.optimizer.name to adamw"
            )
        self._model, self._base, self._devices, self._patience = (
            model,
            base or model,
            tuple(devices),
            patience,
        )
        self._dtype = "bfloat16" if dtype_of(self.settings.dtype, devices[0]) is torch.bfloat16 else "float32"
        self._micro = run.batch.micro
        self._checkpointing = self.settings.checkpointing == "on"
        self._peak, self._padded = 0, ""
        self._without_weights = False
        """The ranks are new after a loss and have no weights yet."""
        self._ranks: Ranks | None = None
        self._entries: tuple[SlabEntry, ...] = self._up().entries
        self.size = sum(entry.numel for entry in self._entries if entry.trained)
        self._total = sum(entry.numel for entry in self._entries)

    def snapshot(self, draft: MakeDraft = in_memory) -> weights.Snapshot:
        with self._slab_tensor(self._total, torch.bfloat16) as slab:
            self._ask(Write(what=("weight",), dtype="bfloat16"))
            released = {entry.released: view for entry, view in self._views(slab)}
            return weights.Snapshot(self.version, weights.write(released, draft))

    def load(self, released: Weights, fresh: bool = False) -> None:
        """As `BaseLearner.load`; new ranks are always fresh."""
        release = ReleaseFile(released.blocks)
        weights.check(release.shapes, {entry.released: tuple(entry.shape) for entry in self._entries})
        release.check(release.places)
        with self._slab_tensor(self._total, torch.bfloat16) as slab:
            for entry, view in self._views(slab):
                for rows, piece in release.pieces(entry.released):
                    torch.atleast_1d(view)[rows] = piece
            self._ask(Read(what=("weight",), dtype="bfloat16", exact=fresh or self.version < 0))
        if fresh:
            self._ask(Fresh())
            self._steps = 0
        self.version = released.version

    @contextmanager
    def _dumped(self) -> Iterator[dict[str, Tensor]]:
        what = ("weight", *MOMENTS) if self._steps else ("weight",)
        with self._slab_tensor(len(what) * self._total, torch.float32) as slab:
            self._ask(Write(what=what, dtype="float32"))
            tensors = {
                f"{kind}/{entry.name}": view
                for kind, part in zip(what, slab.split(self._total), strict=True)
                for entry, view in self._views(part)
                if entry.trained
            }
            if self._steps:
                tensors |= {
                    f"step/{entry.name}": torch.tensor(float(self._steps))
                    for entry in self._entries
                    if entry.trained
                }
            yield tensors

    def statistics(self) -> dict[str, float]:
        """As `BaseLearner.statistics`; `micro` and `peak` are of one rank."""
        return {
            "version": self.version,
            "steps": self._steps,
            "parameters": self.size,
            "ranks": len(self._devices),
            "micro": self._micro,
            "recomputed": float(self._checkpointing),
            "peak": self._peak,
        }

    @property
    def padded(self) -> str:
        return self._padded

    def close(self) -> None:
        """End the ranks."""
        if self._ranks is not None:
            self._ranks.close()
            self._ranks = None

    # --- gradient, step, state -----------------------------------------------------------------------------

    def _learn(self, work: GradientWork) -> GradientResult:
        orders = self._orders(work)
        with self._slab_tensor(self.size, torch.float32) as slab:
            answers = self._ask(orders)
            vector = slab.clone()
        learned = [answer for answer in answers if isinstance(answer, Learned)]
        self._peak, self._padded = max(answer.peak for answer in learned), learned[0].padded
        both = [*zip(orders, learned, strict=True)]
        losses = [loss for order, answer in both for loss in self._losses(order, answer)]
        said = {name: one for order, answer in both for name, one in _results_by_group(order, answer)}
        results = [said[group.id] for group in work.groups]
        return GradientResult(vector, losses, results, _cosine(learned) if len(results) > 1 else None)

    def _descend(self, vector: Tensor, clip: float, rate: float) -> None:
        with self._slab_tensor(self.size, torch.float32) as slab:
            slab.copy_(vector)
            self._ask(ShardStep(lr=rate, scale=clip))

    def _load_tensors(self, tensors: dict[str, Tensor], steps: int) -> None:
        trained = [entry for entry in self._entries if entry.trained]
        stepped = any(f"step/{entry.name}" in tensors for entry in trained)
        what = ("weight", *MOMENTS) if stepped else ("weight",)
        for entry in trained:
            for kind in what:
                found = tensors.get(f"{kind}/{entry.name}")
                if found is None or tuple(found.shape) != entry.shape or found.dtype is not torch.float32:
                    raise ValueError(
                        f"this checkpoint is of another model: {kind} of {entry.name} is missing or of"
                        " another form"
                    )
        with self._slab_tensor(len(what) * self._total, torch.float32) as slab:
            for kind, part in zip(what, slab.split(self._total), strict=True):
                for entry, view in self._views(part):
                    if entry.trained:
                        view.copy_(tensors[f"{kind}/{entry.name}"])
            self._ask(Read(what=what, dtype="float32", steps=steps, buffers=False))
        if not stepped:
            self._ask(Fresh())

    # --- ranks ----------------------------------------------------------------------------------------------

    def _up(self) -> Ranks:
        """The ranks; after a loss new ones, without weights."""
        if self._ranks is None:
            settings = Settings(
                model=str(self._model),
                base=str(self._base),
                run=self.run,
                dtype=self._dtype,
                checkpointing=self._checkpointing,
            )
            self._ranks = Ranks(self._devices, settings, self._patience)
        return self._ranks

    def _ask(self, orders: Order | Sequence[Order]) -> list[Answer]:
        """Every rank's answer to its order. Raises RankLost, OutOfMemory."""
        if self._without_weights and not isinstance(orders, Read):
            raise RankLost(
                "the ranks were lost, and new ones have no weights before a release is loaded", memory=False
            )
        try:
            answers = self._up().call(orders)
        except RankLost as lost:
            self._ranks, self.version, self._steps, self._without_weights = None, -1, 0, True
            if lost.memory:
                raise OutOfMemory(f"{lost}; {self._step_down()}") from lost
            raise
        self._without_weights = False
        return answers

    def _step_down(self) -> str:
        """Need less memory from now on; returns how."""
        if self._micro > 1:
            self._micro //= 2
            return f"{self._micro} groups at a time from now on"
        if self.settings.checkpointing == "auto" and not self._checkpointing:
            self._checkpointing = True
            return "activations are recomputed from now on"
        return "a single group is too much: give it more devices, or a run with shorter completions"

    @contextmanager
    def _slab_tensor(self, count: int, dtype: torch.dtype) -> Iterator[Tensor]:
        """The first (count,) values of the slab, for one order; values that are needed later are copied out
        of it."""
        ranks = self._up()
        ranks.slab.reserve(count * dtype.itemsize)
        try:
            yield ranks.slab.tensor(count, dtype)
        finally:
            if self._ranks is ranks:
                ranks.slab.release()

    def _views(self, slab: Tensor) -> Iterator[tuple[SlabEntry, Tensor]]:
        """All entries in (total,) of the slab."""
        for entry, part in zip(
            self._entries, slab.split([entry.numel for entry in self._entries]), strict=True
        ):
            yield entry, part.view(entry.shape)

    def _losses(self, order: Learn, answer: Learned) -> Iterator[objectives.Loss]:
        """A rank's losses, as one process would compute them: no token of a group that is not believed
        counts."""
        shares = [share for half in order.halves for share in half if share.groups]
        for share, part in zip(shares, answer.parts, strict=True):
            believed = [objection(check, self.run.window.drift) is None for check in part.checks]
            lengths = [
                [n * good for n in group.lengths] for group, good in zip(share.groups, believed, strict=True)
            ]
            total = objectives.Total.of(lengths, share.rewards)
            yield objectives.Loss(
                torch.zeros(()), part.metrics, total, torch.tensor(part.advantage), torch.tensor(part.weight)
            )

    def _orders(self, work: GradientWork) -> list[Learn]:
        """For each rank its part of the batch."""
        whole = Share(groups=tuple(work.groups), prompts=tuple(work.prompts), rewards=tuple(work.rewards))
        count = len(whole.groups)
        middle = -(-count // 2)
        first, second = self._shares(whole, 0, middle), self._shares(whole, middle, count)
        lengths, rewards = work.total.by_group()
        spare = _cut(whole, 0, 1)
        return [
            Learn(
                version=self.version,
                halves=halves,
                spare=spare,
                lengths=lengths,
                rewards=rewards,
                others=work.total.others,
            )
            for halves in zip(first, second, strict=True)
        ]

    def _shares(self, whole: Share, start: int, stop: int) -> list[tuple[Share, ...]]:
        """Each rank's micro-batches of groups start..stop: as many as any other's, the last ones empty where
        it has fewer."""
        ranks = len(self._devices)
        cuts = [start + (stop - start) * rank // ranks for rank in range(ranks + 1)]
        # the larger pieces first: rank 0 has the first group
        cuts = [start + stop - cut for cut in reversed(cuts)]
        step = self._micro
        shares = [
            [_cut(whole, i, min(i + step, last)) for i in range(first, last, step)]
            for first, last in pairwise(cuts)
        ]
        passes = max(map(len, shares))
        return [(*each, *[_cut(whole, 0, 0)] * (passes - len(each))) for each in shares]


def _cut(whole: Share, start: int, stop: int) -> Share:
    part = slice(start, stop)
    return Share(groups=whole.groups[part], prompts=whole.prompts[part], rewards=whole.rewards[part])


def _results_by_group(order: Learn, answer: Learned) -> Iterator[tuple[str, GroupResult]]:
    """The id and results of each group of a rank."""
    shares = [share for half in order.halves for share in half if share.groups]
    for share, part in zip(shares, answer.parts, strict=True):
        start = 0
        for group, check in zip(share.groups, part.checks, strict=True):
            rows = slice(start, start + len(group.lengths))
            yield group.id, GroupResult(check, part.advantage[rows], part.weight[rows])
            start = rows.stop


def _cosine(learned: Sequence[Learned]) -> float:
    """Cosine between the gradients of the two halves; 0 if one is 0."""
    products = (sum(getattr(answer, name) for answer in learned) for name in ("dot", "half", "rest"))
    return InnerProducts(*products).cosine
