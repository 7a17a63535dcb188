"""The common part of all learners, wherever the model lies: one device (swarm.learn.learners.learner), or
several (swarm.learn.fsdp.learner).

    groups + prompts + recomputed rewards --gradient--> vector (P,), weight
        GradientWork --_learn--> GradientResult        (by the kind of learner)
    (averaged elsewhere) --step--> the next version
        vector, clip, rate --_descend--> weights       (by the kind of learner)
    state --load_state--> tensors --_load_tensors--> weights and moments

The weight of a gradient is its objective's divisor (completions, tokens, ...), so that the weighted mean of
several learners' gradients is the gradient of one learner on the union of their batches. An advantage that is
scaled by the spread of a whole batch's rewards needs the others' batches before the gradient: `BatchRewards`
has the totals for that. Groups that teach nothing (`Objective.teaches`) do not go through the model: their
lengths and rewards count in every mean, and their claims are not compared. P counts trainable parameters:
all, or an adapter's. Invariants: a call that raises ValueError has changed nothing; every kind of learner
continues from the state of any other; a gradient is taken at the released values of its version, whatever
masters are below them. No I/O but `save` and `restore`. Not handled here: admission, averaging, publishing.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from swarm.core.gradient_checks.step_recipe import Arithmetic
from swarm.core.intake.claimed_logprobs import NOT_COMPARED, ClaimCheck, objection
from swarm.events import NOT_FINITE
from swarm.learn import objectives
from swarm.learn.files import checkpoint
from swarm.learn.files.weights import Snapshot
from swarm.learn.learners.learning_rates import decayed
from swarm.norm import norm
from swarm.settings.config import Run, Training
from swarm.storage.image import MakeDraft, in_memory, only_leaves
from swarm.storage.weights import Weights
from swarm.types import BatchRewards, Digest, Group


@dataclass(frozen=True)
class Gradient:
    vector: Tensor
    """(P,) float32, of the loss: a descent step subtracts it."""
    groups: int
    weight: float
    """Weight in an average, in full groups: above 0, at most `groups`; 0 of no groups."""
    metrics: dict[str, float]
    advantages: tuple[float, ...]
    """(G,) advantages of the first group that is believed, as the objective computed them."""
    weights: tuple[float, ...]
    """(G,) importance weights of the same group, the mean over a completion's tokens; empty where it teaches
    nothing."""
    checks: tuple[ClaimCheck, ...]
    """One for each group, NOT_COMPARED for those that teach nothing; groups that
    swarm.core.intake.claimed_logprobs objects to add nothing to the vector."""
    version: int
    """Of the policy that computed it."""
    arithmetic: Arithmetic
    """What makes the same bits again."""


@dataclass(frozen=True)
class GradientWork:
    """The input of a gradient: a batch, or a chunk of one."""

    groups: Sequence[Group]
    prompts: Sequence[str]
    rewards: Sequence[tuple[float, ...]]
    total: objectives.Total
    """Of the whole batch."""
    chunks: Sequence[int] = ()
    """Groups that go through the policy at a time; empty: as many as memory lets through."""

    def chunk(self, part: slice) -> GradientWork:
        return GradientWork(self.groups[part], self.prompts[part], self.rewards[part], self.total)

    def of(self, places: Sequence[int]) -> GradientWork:
        """The work of these groups alone."""
        return GradientWork(
            [self.groups[i] for i in places],
            [self.prompts[i] for i in places],
            [self.rewards[i] for i in places],
            self.total,
            self.chunks,
        )


class GroupResult(NamedTuple):
    """The results for one group."""

    check: ClaimCheck
    advantages: tuple[float, ...]
    """(G,)"""
    weights: tuple[float, ...]
    """(G,); empty where the group did not go through the model."""


class GradientResult(NamedTuple):
    vector: Tensor
    """(P,) float32"""
    losses: Sequence[objectives.Loss]
    """Of the chunks; their metrics are merged."""
    groups: Sequence[GroupResult]
    """One for each group of the work, in its order."""
    cosine: float | None
    """Between the gradients of the batch's two halves; None where there are no two."""
    arithmetic: Arithmetic = Arithmetic()


def overflow(lr: float) -> str:
    """Why a gradient that is not finite is refused, and what to do."""
    return (
        f"{NOT_FINITE}: lower run.optimizer.lr ({lr:g}), whose steps are too large for the weights, or take a"
        " model whose loss does not overflow"
    )


class BaseLearner(ABC):
    """One copy of the policy being trained. Not thread-safe: one caller at a time, but for `saves_beside`."""

    size: int
    """P"""

    saves_beside = True
    """Whether a checkpoint may be written by a thread of its own while a gradient is computed."""

    def __init__(self, run: Run, settings: Training | None) -> None:
        """Raises ValueError for an objective that cannot be had."""
        self.run, self.version, self.settings = run, 0, settings or Training()
        self.objective = objectives.objective(run.objective.name, run.objective.options)
        if run.averaging.overlap and self.objective.of_round:
            raise ValueError(
                f"run.averaging.overlap with the objective {run.objective.name}: its gradient takes in all"
                " batches of a round, and those of the next one are not closed yet; take an objective that"
                " needs its own batch alone, such as gepo"
            )
        self._steps = 0
        self.passed = self.to_pass = 0
        """Groups of the current gradient, or the last one, that went through the policy, and all that do;
        may be read from any thread."""

    def gradient(
        self,
        groups: Sequence[Group],
        prompts: Sequence[str],
        rewards: Sequence[tuple[float, ...]],
        now: float,
        others: tuple[BatchRewards, ...] = (),
        chunks: Sequence[int] = (),
    ) -> Gradient:
        """Mean gradient over `groups`; `prompts[i]` and the G `rewards[i]` are those that the learner itself
        computed for group i; `now` is in unix seconds.

        `others`: rewards of the batches that it is averaged with, for an objective that is `of_round`.
        `chunks`: groups that go through the policy at a time, for a gradient that is computed again, of those
        that teach; a learner on one device alone keeps to them.

        Raises OutOfMemory when not even one group fits.
        """
        if not groups:
            raise ValueError("a gradient needs at least one group")
        self.passed, self.to_pass = 0, sum(map(self.objective.teaches, rewards))
        total = objectives.Total.of([group.lengths for group in groups], rewards, others)
        result = self._learn_teaching(GradientWork(groups, prompts, rewards, total, chunks))
        self.passed = self.to_pass  # ranks do not count them one by one
        metrics = objectives.merge(result.losses)
        if result.cosine is not None:
            metrics["cosine"] = result.cosine
        metrics["lag_versions"] = sum(self.version - group.version for group in groups) / len(groups)
        metrics["lag_seconds"] = sum(now - group.times.released for group in groups) / len(groups)
        checks = tuple(each.check for each in result.groups)
        shown = result.groups[first_believed(checks, self.run.window.drift)]
        sampling = self.run.sampling
        weight = objectives.mean_weight(self.objective, total, sampling.group_size, sampling.max_tokens)
        return Gradient(
            result.vector,
            len(groups),
            weight,
            metrics,
            shown.advantages,
            shown.weights,
            checks,
            self.version,
            result.arithmetic,
        )

    def _learn_teaching(self, work: GradientWork) -> GradientResult:
        """The gradient of a whole batch by the groups that teach. Raises OutOfMemory."""
        teach = [self.objective.teaches(rewards) for rewards in work.rewards]
        teaching = [i for i, yes in enumerate(teach) if yes]
        idle = [i for i, yes in enumerate(teach) if not yes]
        if not idle:
            return self._learn(work)
        learned = (
            self._learn(work.of(teaching))
            if teaching
            else GradientResult(torch.zeros(self.size), (), (), None, self._arithmetic(()))
        )
        rest = work.of(idle)
        lengths = [group.lengths for group in rest.groups]
        results = dict(zip(teaching, learned.groups, strict=True))
        results |= {i: GroupResult(NOT_COMPARED, (0.0,) * len(work.rewards[i]), ()) for i in idle}
        losses = [*learned.losses, objectives.of_idle_groups(lengths, rest.rewards)]
        return learned._replace(losses=losses, groups=[results[i] for i in range(len(teach))])

    def _arithmetic(self, chunks: Sequence[int]) -> Arithmetic:
        """Of a gradient in these chunks, where the same bits can be made again."""
        return Arithmetic()

    def nothing(self) -> Gradient:
        """The gradient of no groups: a learner takes part in a round with it, and adds nothing."""
        return Gradient(torch.zeros(self.size), 0, 0.0, {}, (), (), (), self.version, Arithmetic())

    def step(self, vector: Tensor) -> dict[str, float]:
        """Clip, AdamW, next version; returns the norm before clipping and the learning rate. Raises
        ValueError, with nothing changed, for a vector of another size or not finite.

        Raises OutOfMemory: with nothing changed, or, half way, with `version` -1: then there is no policy
        until the next `load`.
        """
        metrics = self._step(vector)
        self.version += 1
        return metrics

    def _step(self, vector: Tensor) -> dict[str, float]:
        """`step` without the next version."""
        if vector.shape != (self.size,):
            raise ValueError(
                f"this gradient has the shape {[*vector.shape]}, the policy has {self.size} parameters"
            )
        settings, grad_norm = self.run.optimizer, norm(vector)
        if not math.isfinite(grad_norm):
            raise ValueError(overflow(settings.lr))
        clip = min(1.0, settings.grad_clip / (grad_norm + 1e-6)) if settings.grad_clip > 0 else 1.0
        warm = min(1.0, (self._steps + 1) / max(1, settings.warmup))
        rate = settings.lr * warm * decayed(self.run, self.version)
        self._descend(vector, clip, rate)
        self._steps += 1
        return {"grad_norm": grad_norm, "lr": rate}

    @abstractmethod
    def snapshot(self, draft: MakeDraft = in_memory) -> Snapshot:
        """The policy as it is released, written to a draft piece by piece: it is packed while the next
        gradient is computed."""

    def weights(self) -> Weights:
        """The policy as it is released: bf16 safetensors."""
        return self.snapshot().packed()

    def digest(self) -> Digest:
        """Of the policy as it is released."""
        return self.snapshot(only_leaves).packed().digest

    @abstractmethod
    def load(self, released: Weights, fresh: bool = False) -> None:
        """Take released weights and their version; `fresh` also forgets the moments and warms up
        again.

        Masters keep their values where their bf16 rounding equals the release: the bits below it are training
        that no release shows. A learner that is `fresh`, or has no policy (`version` -1), takes the released
        values themselves. Raises ValueError, with nothing changed, when they are damaged or of another model.
        """

    def state(self, extra: Mapping[str, object] | None = None) -> bytes:
        """Everything that the next step depends on: fp32 weights, moments, counts. `extra` is plain JSON."""
        with self._dumped() as tensors:
            return checkpoint.pack(tensors, self._facts(extra))

    def load_state(self, state: bytes) -> dict[str, Any]:
        """Load what `state` returned, of another learner or of an earlier process; returns its `extra`. The
        next step is then bit for bit the same.

        Raises ValueError, with nothing changed, when `state` is damaged, or of another model, training or
        optimizer.
        """
        tensors, facts = checkpoint.unpack(state)
        for what, mine in self._kind().items():
            if facts.get(what) != mine:
                raise ValueError(
                    f"this checkpoint is of another run: its {what} is {facts.get(what)}, here it is {mine}"
                )
        told = checkpoint.counts(facts)
        self._load_tensors(tensors, told.steps)
        self.version, self._steps = told.version, told.steps
        return told.extra

    def restorer(self) -> Callable[[], None]:
        """What sets me back to where I am now, whatever is loaded until then."""
        before = self.state()

        def restore() -> None:
            self.load_state(before)

        return restore

    def save(self, folder: Path, extra: Mapping[str, object] | None = None) -> None:
        """Write a checkpoint: complete, or the one before stays. The random state of torch is part of it."""
        self.checkpoint(extra)(folder)

    def checkpoint(self, extra: Mapping[str, object] | None = None) -> Callable[[Path], None]:
        """What writes a checkpoint of my state to a folder, as `save` does. It is called before that state
        changes, and beside a gradient where the learner `saves_beside`."""
        facts, more = self._facts(checkpoint.with_rng_state(extra)), self._only_in_checkpoints()

        def write(folder: Path) -> None:
            with self._dumped() as tensors:
                checkpoint.write(folder, tensors | more, facts)

        return write

    def restore(self, folder: Path, read: Callable[[dict[str, Any]], Any] = dict) -> Any:
        """Continue from a checkpoint; returns what `read` makes of its `extra`.

        Raises FileNotFoundError when there is none, OSError when the disk does not give it, ValueError, also
        of `read`, when it is damaged or of another model: nothing is changed then.
        """
        state = checkpoint.read(folder)
        rng, extra = checkpoint.read_rng_state(checkpoint.read_facts(state).get("extra", {}))
        own = read(extra)
        self.load_state(state)
        torch.set_rng_state(rng)
        return own

    @abstractmethod
    def statistics(self) -> dict[str, float]:
        """`micro`: groups that may go through the model together; `tokens`: most that they may have, since
        memory ran out; `recomputed`: layers whose activations are not kept; `peak`: most bytes in use during
        the last gradient (of the GPU, or resident)."""

    @property
    @abstractmethod
    def padded(self) -> str:
        """As `Policy.padded`."""

    # --- by the kind of learner -----------------------------------------------------------------------------

    @abstractmethod
    def _learn(self, work: GradientWork) -> GradientResult:
        """The gradient of the groups of a batch that teach, one at least. Raises OutOfMemory."""

    @abstractmethod
    def _descend(self, vector: Tensor, clip: float, rate: float) -> None:
        """One step along `vector` times `clip`. Raises OutOfMemory as `step` does."""

    @abstractmethod
    def _load_tensors(self, tensors: dict[str, Tensor], steps: int) -> None:
        """Weights, and moments after `steps` steps. Raises ValueError, with nothing changed."""

    @abstractmethod
    def _dumped(self) -> AbstractContextManager[dict[str, Tensor]]:
        """The weights, and the moments where there are some, as `_load_tensors` takes them: not copies."""

    def _only_in_checkpoints(self) -> dict[str, Tensor]:
        """Copies that a checkpoint has beside `_dumped`, and that no other learner takes over."""
        return {}

    def _facts(self, extra: Mapping[str, object] | None) -> dict[str, object]:
        """Facts about the state's tensors."""
        return self._kind() | {"version": self.version, "steps": self._steps, "extra": extra or {}}

    def _kind(self) -> dict[str, object]:
        """The facts in which a checkpoint and the learner that loads it must agree."""
        return {"training": self.run.model.training, "optimizer": self.run.optimizer.name}


def first_believed(checks: Sequence[ClaimCheck], drift: float) -> int:
    """Index of the first group that is believed; 0 when none is."""
    return next((i for i, each in enumerate(checks) if objection(each, drift) is None), 0)
