"""A learner whose model is a module of this process, on one device.

    GradientWork --chunks--> forward, backward (parameters in the policy's precision), added up in float32
    vector --optimizer--> fp32 master weights --bf16--> the policy's parameters

A group whose claimed log-probabilities are not trusted adds no gradient: its tokens are left out and the
divisor of the batch stays, so that no refusal makes a step larger, whatever the chunks are. fp32 master
weights and the optimizer's moments stay here (swarm.learn.learners.optimizers); releases are bf16. A chunk
that does not fit in memory is computed again in smaller ones, with the same gradient; then activations are
recomputed; then OutOfMemory is raised. Not handled here: the common part of all learners
(swarm.learn.learners.base_learner).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor

from swarm.core.gradient_checks.step_recipe import Arithmetic
from swarm.core.intake.claimed_logprobs import ClaimCheck, objection
from swarm.core.intake.overlong import is_cut
from swarm.learn import objectives
from swarm.learn.files import weights
from swarm.learn.learners import microbatch
from swarm.learn.learners.base_learner import BaseLearner, GradientResult, GradientWork, GroupResult
from swarm.learn.learners.claim_checks import bound_logq, check_claims
from swarm.learn.learners.gradient_accumulator import GradientAccumulator, cosine
from swarm.learn.learners.microbatch import OutOfMemory
from swarm.learn.learners.optimizers import MasterOptimizer
from swarm.learn.models.policy import Policy
from swarm.settings.config import Run, Training
from swarm.storage.image import MakeDraft, in_memory
from swarm.storage.weights import Weights

PLENTY = 32
"""Free bytes of main memory for each trained value, from which vectors are page-locked: two of them, of up to
eight bytes a value each, leave half of it."""


class Learner(BaseLearner):
    """The policy as a module of this process, on one device."""

    def __init__(
        self, policy: Policy, run: Run, settings: Training | None = None, ram: Callable[[], int] | None = None
    ) -> None:
        """`ram` returns the free bytes of main memory; without it a learner on a CPU does not look ahead.

        Raises ValueError for an unsupported objective, optimizer or way to save memory.
        """
        super().__init__(run, settings)
        self.policy = policy
        self._named = {name: value for name, value in policy.module.named_parameters() if value.requires_grad}
        self._device = next(iter(self._named.values())).device
        self.size = sum(parameter.numel() for parameter in self._named.values())
        self._optimizer = MasterOptimizer(self._named, run.optimizer)
        self._peak_memory = microbatch.PeakMemory(self._device)
        self._microbatch = microbatch.MicrobatchSize(
            run.batch.micro, lambda: microbatch.available(self._device, ram)
        )
        self._page_locked = ram is not None and ram() >= PLENTY * self.size
        self._recomputed = 0
        if self.settings.checkpointing == "on" and not self._recompute():
            raise ValueError(
                "peer.learner.checkpointing = 'on': this model has no layers that could be recomputed; use"
                " 'off'"
            )

    def snapshot(self, draft: MakeDraft = in_memory) -> weights.Snapshot:
        return weights.Snapshot(self.version, weights.write(weights.state(self.policy.module), draft))

    def load(self, released: Weights, fresh: bool = False) -> None:
        exact = fresh or self.version < 0
        weights.load_into(self.policy.module, released.blocks)
        self._optimizer.refresh(exact)
        self.version = released.version
        if fresh:
            self._steps = 0
            self._optimizer.forget()

    def statistics(self) -> dict[str, float]:
        return {
            "version": self.version,
            "steps": self._steps,
            "parameters": self.size,
            "micro": self.run.batch.micro,
            "tokens": self._microbatch.tokens,
            "recomputed": self._recomputed,
            "peak": self._peak_memory.peak,
        }

    @property
    def padded(self) -> str:
        return self.policy.padded

    def _descend(self, vector: Tensor, clip: float, rate: float) -> None:
        advice = "lora or qlora, or adamw8bit, in a new run need less; or learn on another device"
        with microbatch.oom_as(f"the moments of {self.size} parameters do not fit in memory: {advice}"):
            self._optimizer.prepare()
        try:
            with microbatch.oom_as("memory ran out in the middle of a step: its version is lost"):
                self._optimizer.step(vector, clip, rate)
        except OutOfMemory:
            self.version, self._steps = -1, 0
            self._optimizer.forget()
            raise

    @contextmanager
    def _dumped(self) -> Iterator[dict[str, Tensor]]:
        yield self._optimizer.dump()

    def _load_tensors(self, tensors: dict[str, Tensor], steps: int) -> None:
        self._optimizer.check(tensors)
        self._optimizer.load(tensors)

    # --- a gradient, chunk by chunk -------------------------------------------------------------------------

    def _learn(self, work: GradientWork) -> GradientResult:
        self._peak_memory.peak = 0
        with microbatch.oom_as(f"a gradient of {self.size} values does not fit in memory"):
            return self._added_up(work, GradientAccumulator(self._named, self._page_locked))

    def _added_up(self, work: GradientWork, total: GradientAccumulator) -> GradientResult:
        self._microbatch.begin()
        losses, checks, half, chunks = self._chunks(work, total)
        vector = total.vector()
        sizes = [len(group.lengths) for group in work.groups]
        advantages, weights = (
            [tuple(of_group.tolist()) for of_group in torch.cat(of_chunks).cpu().split(sizes)]
            for of_chunks in ([loss.advantage for loss in losses], [loss.weight for loss in losses])
        )
        results = [GroupResult(*each) for each in zip(checks, advantages, weights, strict=True)]
        alike = None if half is None else cosine(half, total.sketch() - half)
        return GradientResult(vector, losses, results, alike, self._arithmetic(chunks))

    def _arithmetic(self, chunks: Sequence[int]) -> Arithmetic:
        dtype = next(iter(self._named.values())).dtype
        return Arithmetic(
            chunks=tuple(chunks),
            device=self._device.type,
            dtype=str(dtype).removeprefix("torch."),
            threads=torch.get_num_threads(),
            torch=str(torch.__version__),
        )

    def _chunks(
        self, work: GradientWork, total: GradientAccumulator
    ) -> tuple[list[objectives.Loss], list[ClaimCheck], Tensor | None, list[int]]:
        """Add the gradient of every group to `total`. Returns the chunks' losses, each group's checks, a
        sketch of the first half's gradient, and how many groups each chunk had.

        One chunk ends in the middle of the batch, whatever fits.
        """
        groups = len(work.groups)
        middle, done = -(-groups // 2), 0
        parts: list[objectives.Loss] = []
        checks: list[ClaimCheck] = []
        half: Tensor | None = None
        sizes: list[int] = []
        while done < groups:
            if self._microbatch.unmeasured and not work.chunks:
                self._probe(work)
            if done == middle and half is None:
                half = total.sketch()
            # not before the first pass, which tells whether the policy pads
            rest = self._tokens(work)[done : middle if done < middle else groups]
            count = work.chunks[len(sizes)] if work.chunks else self._microbatch.take(rest)
            if count == 1 and not self._microbatch.fits(rest[0]) and self._recompute_if_allowed():
                continue
            passed = self._attempt(work.chunk(slice(done, done + count)))
            if passed is None and work.chunks:
                raise OutOfMemory(f"the chunk of {count} groups that is asked for does not fit in memory")
            if passed is None:
                self._step_down(rest[:count], work)
                continue
            total.add()
            parts.append(passed[0])
            checks += passed[1]
            sizes.append(count)
            self.passed = done = done + count
        self._microbatch.succeeded()
        return parts, checks, half, sizes

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
            self._microbatch.measured(sum(self._tokens(chunk)), self._peak_memory.rise())
            return part, checks
        # Not inside the handler: there the error's traceback holds the activations.
        for parameter in self._named.values():
            parameter.grad = None
        microbatch.free(self._device)
        return None

    def _probe(self, work: GradientWork) -> None:
        """Measure one chunk of one group, the largest; its gradient is not used."""
        tokens = self._tokens(work)
        largest = tokens.index(max(tokens))
        microbatch.free(self._device)  # otherwise memory that is ready would hide a CPU chunk's needs
        while self._attempt(work.chunk(slice(largest, largest + 1))) is None:
            self._step_down([max(tokens)], work)
        for parameter in self._named.values():
            parameter.grad = None

    def _step_down(self, tokens: Sequence[float], work: GradientWork) -> None:
        """Memory ran out with groups of so many tokens. Raises OutOfMemory when there is nothing left to give
        up."""
        if self._microbatch.failed(tokens) or self._recompute_if_allowed():
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

    def _tokens(self, work: GradientWork) -> list[float]:
        both = zip(work.groups, work.prompts, strict=True)
        return [self.policy.tokens(prompt, group.lengths) for group, prompt in both]

    def _batch(self, work: GradientWork) -> tuple[objectives.Batch, list[ClaimCheck]]:
        return batch_of(self.policy, self.run, work, self.version, self.objective.has_reference)


def batch_of(
    policy: Policy, run: Run, work: GradientWork, version: int, reference: bool = False
) -> tuple[objectives.Batch, list[ClaimCheck]]:
    """The Batch of an objective, and the claim check of each group: log-probabilities of a policy at
    `version`, with gradient, and those that the groups claim; `reference`: those of version 0, too. A group
    that is not believed has no token in the mask."""
    rows, asked, sampled, owner, lag = [], [], [], [], []
    for i, (group, prompt) in enumerate(zip(work.groups, work.prompts, strict=True)):
        cuts = np.cumsum(group.lengths)[:-1]
        rows += [row.tolist() for row in np.split(np.frombuffer(group.tokens.data, "<i4"), cuts)]
        sampled += np.split(np.frombuffer(group.logprobs.data, "<f4"), cuts)
        asked += [prompt] * len(group.lengths)
        owner += [i] * len(group.lengths)
        lag += [version - group.version] * len(group.lengths)
    # before the pass with a gradient, which needs the memory and the adapter
    ref = policy.reference(asked, rows, run.sampling.temperature) if reference else None
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
        ref=ref,
        lag=torch.tensor(lag, device=device),
        silent=_silent(run, policy.ends, rows, device),
        entropy=scored.entropy,
        horizon=float(run.sampling.max_tokens),
        total=work.total,
    )
    return batch, checks


def _silent(
    run: Run, ends: Sequence[int], rows: Sequence[Sequence[int]], device: torch.device
) -> Tensor | None:
    if run.objective.overlong != "mask":
        return None
    return torch.tensor([is_cut(row, ends) for row in rows], device=device)
