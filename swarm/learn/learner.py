"""The torch side of a learner: groups to a gradient vector, a vector to the next version of the policy.

    groups + prompts + recomputed rewards --gradient--> vector (P,), weight
        in chunks: forward, backward (parameters in the policy's precision), added up in float32
    (averaged elsewhere) --step--> weights

The weight of a gradient is what its objective divides by (completions, tokens, ...), so that the weighted
mean of several learners' gradients is the gradient of one learner on the union of their batches. An advantage
that is scaled by the spread of a whole batch's rewards needs the others' batches before the gradient:
`BatchRewards` has what it takes of them. A group whose claimed log-probabilities are not believed adds no
gradient: its tokens are left out and the divisor of the batch stays, so that no refusal makes a step larger,
whatever the chunks are. P counts trainable parameters: all, or an adapter's. fp32 master weights and the
optimizer's moments stay here (swarm.learn.optimizers); releases are bf16. A chunk that does not fit in memory
is computed again in smaller ones, with the same gradient; then activations are recomputed; then OutOfMemory
is raised. No I/O but `save` and `restore`. Not handled here: admission, averaging, who publishes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from swarm.config import Run, Training
from swarm.core.claimed_logprobs import ClaimCheck, objection
from swarm.learn import checkpoint, microbatch, objectives, weights
from swarm.learn.claim_checks import bound_logq, check_claims
from swarm.learn.gradient_accumulator import GradientAccumulator, cosine
from swarm.learn.microbatch import OutOfMemory
from swarm.learn.optimizers import MasterOptimizer
from swarm.learn.policy import Policy
from swarm.types import BatchRewards, Group
from swarm.weights import Weights

CHARACTERS_PER_TOKEN = 3.0
"""Assumed characters per prompt token, when the memory of a chunk is predicted."""


@dataclass(frozen=True)
class Gradient:
    vector: Tensor
    """(P,) float32, of the loss: what a descent step subtracts."""
    groups: int
    weight: float
    """Weight in an average, in full groups: above 0, at most `groups`."""
    metrics: dict[str, float]
    advantages: tuple[float, ...]
    """(G,) advantages of the first group that is believed, as the objective computed them."""
    weights: tuple[float, ...]
    """(G,) importance weights of the same group, the mean over a completion's tokens."""
    checks: tuple[ClaimCheck, ...]
    """One for each group; groups that swarm.core.claimed_logprobs objects to add nothing to the vector."""


@dataclass(frozen=True)
class GradientWork:
    """The input of a gradient: a batch, or a chunk of one."""

    groups: Sequence[Group]
    prompts: Sequence[str]
    rewards: Sequence[tuple[float, ...]]
    total: objectives.Total
    """Of the whole batch."""

    def chunk(self, part: slice) -> GradientWork:
        return GradientWork(self.groups[part], self.prompts[part], self.rewards[part], self.total)

    def cells(self) -> list[float]:
        """Completions times positions of each group, approximately: memory is proportional to it."""
        both = zip(self.groups, self.prompts, strict=True)
        return [
            len(group.lengths) * (max(group.lengths) + len(prompt) / CHARACTERS_PER_TOKEN)
            for group, prompt in both
        ]


class Learner:
    """One copy of the policy being trained. Not thread-safe: one caller at a time."""

    def __init__(
        self, policy: Policy, run: Run, settings: Training | None = None, ram: Callable[[], int] | None = None
    ) -> None:
        """`ram` says how many bytes of main memory are free; without it a learner on a CPU does not look
        ahead.

        Raises ValueError for an objective, an optimizer or a way to save memory that cannot be had.
        """
        self.policy, self.run, self.version = policy, run, 0
        self.settings = settings or Training()
        self.objective = objectives.trainable(run.objective.name, run.objective.options)
        self._named = {name: value for name, value in policy.module.named_parameters() if value.requires_grad}
        self._device = next(iter(self._named.values())).device
        self.size = sum(parameter.numel() for parameter in self._named.values())
        self._steps = 0
        self._optimizer = MasterOptimizer(self._named, run.optimizer)
        self._peak_memory = microbatch.PeakMemory(self._device)
        self._microbatch = microbatch.MicrobatchSize(
            run.batch.micro, lambda: microbatch.available(self._device, ram)
        )
        self._recomputed = 0
        if self.settings.checkpointing == "on" and not self._recompute():
            raise ValueError(
                "peer.learner.checkpointing = 'on': this model has no layers that could be recomputed; use"
                " 'off'"
            )

    def gradient(
        self,
        groups: Sequence[Group],
        prompts: Sequence[str],
        rewards: Sequence[tuple[float, ...]],
        now: float,
        others: tuple[BatchRewards, ...] = (),
    ) -> Gradient:
        """Mean gradient over `groups`; `prompts[i]` and the G `rewards[i]` are those that the learner itself
        computed for group i; `now` is in unix seconds.

        `others`: rewards of the batches that it is averaged with, for an objective that is `of_round`.

        Raises OutOfMemory when not even one group fits.
        """
        if not groups:
            raise ValueError("a gradient needs at least one group")
        work = GradientWork(
            groups,
            prompts,
            rewards,
            objectives.Total.of([group.lengths for group in groups], rewards, others),
        )
        self._peak_memory.peak = 0
        with microbatch.oom_as(f"a gradient of {self.size} values does not fit in memory"):
            total = GradientAccumulator(self._named)
        self._microbatch.begin()
        parts, checks, middle = self._learn(work, total)
        vector = total.vector()
        metrics = objectives.merge(parts)
        if middle is not None:
            metrics["cosine"] = cosine(middle, total.sketch() - middle)
        metrics["lag_versions"] = sum(self.version - group.version for group in groups) / len(groups)
        metrics["lag_seconds"] = sum(now - group.times.released for group in groups) / len(groups)
        sizes = [len(group.lengths) for group in groups]
        shown = first_believed(checks, self.run.window.drift)
        advantages, importance = (
            tuple(torch.cat(values).split(sizes)[shown].tolist())
            for values in ([part.advantage for part in parts], [part.weight for part in parts])
        )
        sampling = self.run.sampling
        weight = objectives.mass(self.objective, work.total, sampling.group_size, sampling.max_tokens)
        return Gradient(vector, len(groups), weight, metrics, advantages, importance, tuple(checks))

    def step(self, vector: Tensor) -> dict[str, float]:
        """Clip, AdamW, next version; returns the norm before clipping and the learning rate. Raises
        ValueError, with nothing changed, for a vector of another size or not finite.

        Raises OutOfMemory: with nothing changed, or, half way, with `version` -1: then there is no policy
        until the next `load`.
        """
        if vector.shape != (self.size,):
            raise ValueError(
                f"this gradient has the shape {[*vector.shape]}, the policy has {self.size} parameters"
            )
        norm = float(torch.linalg.vector_norm(vector.float()))
        if not math.isfinite(norm):
            raise ValueError(
                "this gradient is not finite: a member's loss overflowed, or it sent damaged values"
            )
        settings = self.run.optimizer
        clip = min(1.0, settings.grad_clip / (norm + 1e-6)) if settings.grad_clip > 0 else 1.0
        rate = settings.lr * min(1.0, (self._steps + 1) / max(1, settings.warmup))
        advice = "lora or qlora, or adamw8bit, in a new run need less; or learn on another device"
        with microbatch.oom_as(f"the moments of {self.size} parameters do not fit in memory: {advice}"):
            self._optimizer.prepare()
        try:
            with microbatch.oom_as("memory ended in the middle of a step, whose version is lost"):
                self._optimizer.step(vector, clip, rate)
        except OutOfMemory:
            self.version, self._steps = -1, 0
            self._optimizer.forget()
            raise
        self._steps += 1
        self.version += 1
        return {"grad_norm": norm, "lr": rate}

    def weights(self) -> Weights:
        """The policy as it is released: bf16 safetensors."""
        return Weights.of(weights.release_bytes(self.policy.module), self.version)

    def load(self, released: Weights, fresh: bool = False) -> None:
        """Take released weights and their version; `fresh` also forgets the moments and warms up
        again.

        Masters stay where their bf16 view is what was released: what they hold below it is training that no
        release shows. A learner that is `fresh`, or has no policy (`version` -1), takes the released values
        themselves. Raises ValueError, with nothing changed, when they are damaged or of another model.
        """
        exact = fresh or self.version < 0
        weights.load_into(self.policy.module, released.data, masters=not exact)
        self._optimizer.refresh(exact)
        self.version = released.version
        if fresh:
            self._steps = 0
            self._optimizer.forget()

    def state(self, extra: Mapping[str, object] | None = None) -> bytes:
        """Everything that the next step depends on: fp32 weights, moments, counts. `extra` is plain JSON."""
        facts = {"version": self.version, "steps": self._steps, "extra": extra or {}}
        return checkpoint.pack(self._optimizer.dump(), self._kind() | facts)

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
        self._optimizer.check(tensors)
        self._optimizer.load(tensors)
        self.version, self._steps = int(facts["version"]), int(facts["steps"])
        return dict(facts["extra"])

    def save(self, folder: Path, extra: Mapping[str, object] | None = None) -> None:
        """Write a checkpoint: complete, or the one before stays. The random state of torch is part of it."""
        checkpoint.write(folder, self.state(checkpoint.with_rng_state(extra)))

    def restore(self, folder: Path) -> dict[str, Any]:
        """Continue from a checkpoint; returns its `extra`.

        Raises FileNotFoundError when there is none, ValueError (nothing changed) when it is damaged or of
        another model.
        """
        return checkpoint.restore_rng_state(self.load_state(checkpoint.read(folder)))

    def statistics(self) -> dict[str, float]:
        """`micro`: groups that memory lets through the model together; `recomputed`: layers whose activations
        are not kept; `peak`: bytes in use at most during the last gradient (of the GPU, or resident)."""
        return {
            "version": self.version,
            "steps": self._steps,
            "parameters": self.size,
            "micro": self._microbatch.groups,
            "recomputed": self._recomputed,
            "peak": self._peak_memory.peak,
        }

    # --- a gradient, chunk by chunk -------------------------------------------------------------------------

    def _learn(
        self, work: GradientWork, total: GradientAccumulator
    ) -> tuple[list[objectives.Loss], list[ClaimCheck], Tensor | None]:
        """Add the gradient of every group to `total`. Returns the chunks' losses, each group's checks, a
        sketch of the first half's gradient.

        One chunk ends in the middle of the batch, whatever fits.
        """
        cells, groups = work.cells(), len(work.groups)
        middle, done = -(-groups // 2), 0
        parts: list[objectives.Loss] = []
        checks: list[ClaimCheck] = []
        half: Tensor | None = None
        while done < groups:
            if self._microbatch.unmeasured:
                self._probe(work)
            if done == middle and half is None:
                half = total.sketch()
            rest = cells[done : middle if done < middle else groups]
            count = self._microbatch.take(rest)
            if count == 1 and not self._microbatch.fits(rest[0]) and self._recompute_if_allowed():
                continue
            passed = self._attempt(work.chunk(slice(done, done + count)))
            if passed is None:
                self._step_down(count, work)
                continue
            total.add()
            parts.append(passed[0])
            checks += passed[1]
            done += count
        self._microbatch.succeeded()
        return parts, checks, half

    def _attempt(self, chunk: GradientWork) -> tuple[objectives.Loss, list[ClaimCheck]] | None:
        """Forward and backward, the gradient in the parameters; None, with everything freed, when memory ran
        out."""
        self._peak_memory.start()
        try:
            batch, checks = self._batch(chunk)
            part = objectives.loss(self.objective, batch)
            part.value.backward()
            part = part._replace(value=part.value.detach())
        except Exception as error:
            if not microbatch.ran_out(error):
                raise
        else:
            self._microbatch.measured(len(chunk.groups) * max(chunk.cells()), self._peak_memory.rise())
            return part, checks
        # Not inside the handler: there the error's traceback holds the activations.
        for parameter in self._named.values():
            parameter.grad = None
        microbatch.free(self._device)
        return None

    def _probe(self, work: GradientWork) -> None:
        """Measure one chunk of one group, the largest; its gradient is not used."""
        cells = work.cells()
        largest = cells.index(max(cells))
        microbatch.free(self._device)  # or what a CPU's chunk finds ready would not show
        while self._attempt(work.chunk(slice(largest, largest + 1))) is None:
            self._step_down(1, work)
        for parameter in self._named.values():
            parameter.grad = None

    def _step_down(self, count: int, work: GradientWork) -> None:
        """Memory ran out with `count` groups. Raises OutOfMemory when there is nothing left to give up."""
        if self._microbatch.failed(count) or self._recompute_if_allowed():
            return
        largest = max(work.groups, key=lambda group: sum(group.lengths))
        left = microbatch.available(self._device)
        more = ["peer.learner.checkpointing = 'auto'"] if self.settings.checkpointing == "off" else []
        more += (
            ["peer.learner.dtype = 'bfloat16'"]
            if next(iter(self._named.values())).dtype is torch.float32
            else []
        )
        raise OutOfMemory(
            f"not even one group of {len(largest.lengths)} completions with {sum(largest.lengths)} tokens"
            " goes through the model"
            + ("" if left is None else f" ({left / 2**30:.1f} GiB are free on {self._device})")
            + f": {' or '.join([*more, 'another device'])} may do, or sample on this machine"
        )

    def _recompute_if_allowed(self) -> bool:
        """Switch to recomputing activations. False when it is on already, forbidden, or of no use."""
        if self.settings.checkpointing != "auto" or self._recomputed or not self._recompute():
            return False
        self._microbatch.reset()
        return True

    def _recompute(self) -> int:
        self._recomputed = microbatch.recompute(self.policy.module)
        return self._recomputed

    def _kind(self) -> dict[str, object]:
        """The facts in which a checkpoint and the learner that loads it must agree."""
        return {"training": self.run.model.training, "optimizer": self.run.optimizer.name}

    def _batch(self, work: GradientWork) -> tuple[objectives.Batch, list[ClaimCheck]]:
        return batch_of(self.policy, self.run, work, self.version)


def batch_of(
    policy: Policy, run: Run, work: GradientWork, version: int
) -> tuple[objectives.Batch, list[ClaimCheck]]:
    """The Batch of an objective, and the claim check of each group: log-probabilities of a policy at
    `version`, with gradient, and those that the groups claim. A group that is not believed has no token in
    the mask."""
    rows, asked, sampled, owner, lag = [], [], [], [], []
    for i, (group, prompt) in enumerate(zip(work.groups, work.prompts, strict=True)):
        cuts = np.cumsum(group.lengths)[:-1]
        rows += [row.tolist() for row in np.split(np.frombuffer(group.tokens.data, "<i4"), cuts)]
        sampled += np.split(np.frombuffer(group.logprobs.data, "<f4"), cuts)
        asked += [prompt] * len(group.lengths)
        owner += [i] * len(group.lengths)
        lag += [version - group.version] * len(group.lengths)
    scored = policy.logprobs(asked, rows, run.sampling.temperature)
    logq = np.zeros(tuple(scored.logp.shape), np.float32)
    for i, values in enumerate(sampled):
        logq[i, : len(values)] = values
    device, drift = scored.logp.device, run.window.drift
    claimed, index = torch.from_numpy(logq).to(device), torch.tensor(owner, device=device)
    sizes = [len(group.lengths) for group in work.groups]
    checks = check_claims(scored.logp, claimed, scored.mask, sizes, run.sampling.max_tokens)
    believed = torch.tensor([objection(each, drift) is None for each in checks], device=device)
    batch = objectives.Batch(
        logp=scored.logp,
        logq=bound_logq(scored.logp, claimed, drift),
        mask=scored.mask & believed[index][:, None],
        reward=torch.tensor([r for group in work.rewards for r in group], device=device),
        group=index,
        lag=torch.tensor(lag, device=device),
        entropy=scored.entropy,
        horizon=float(run.sampling.max_tokens),
        total=work.total,
    )
    return batch, checks


def first_believed(checks: Sequence[ClaimCheck], drift: float) -> int:
    """Index of the first group that is believed; 0 when none is."""
    return next((i for i, each in enumerate(checks) if objection(each, drift) is None), 0)
