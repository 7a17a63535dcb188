"""The torch side of a learner: groups in, one gradient vector out; a vector in, the next version of the policy out.

    groups + prompts + recomputed rewards --gradient--> vector (P,) --(averaged elsewhere, weighted by groups)--> step --> weights

A gradient is the mean over its groups, so that the mean of several learners' gradients weighted by their numbers of groups is
the gradient of the union; what an objective takes over a batch (its tokens, the spread of its rewards) is each learner's own.
fp32 master weights and the optimizer's moments stay here; what others see is bf16. No I/O but `save` and `restore`. Not handled
here: admission, averaging, who publishes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from swarm.config import Run
from swarm.learn import checkpoint, objectives, weights
from swarm.learn.policy import Policy
from swarm.types import Group


@dataclass(frozen=True)
class Gradient:
    vector: Tensor
    """(P,) float32, of the loss: what a descent step subtracts."""
    groups: int
    """Its weight in an average."""
    metrics: dict[str, float]
    advantages: tuple[float, ...]
    """(G,) of the first group, as the objective used them."""
    weights: tuple[float, ...]
    """(G,) of the first group: its importance weights, the mean over a completion's tokens."""


class Learner:
    """One copy of the policy being trained. Not thread-safe: one caller at a time."""

    def __init__(self, policy: Policy, run: Run) -> None:
        self.policy = policy
        self.run = run
        self.version = 0
        self.objective = objectives.trainable(run.objective.name, run.objective.options)
        self._names = [name for name, _ in policy.module.named_parameters()]
        self._parameters = [parameter for _, parameter in policy.module.named_parameters()]
        self.size = sum(parameter.numel() for parameter in self._parameters)
        self._steps = 0
        self._optimizer = self._new_optimizer()

    def gradient(
        self, groups: Sequence[Group], prompts: Sequence[str], rewards: Sequence[tuple[float, ...]], now: float
    ) -> Gradient:
        """Mean gradient over `groups`; `prompts[i]` and `rewards[i]` are what the learner itself regenerated for group i."""
        if not groups:
            raise ValueError("a gradient needs at least one group")
        total = objectives.Total.of([group.lengths for group in groups], rewards)
        self.policy.module.zero_grad(set_to_none=True)
        parts: list[objectives.Loss] = []
        middle, half = -(-len(groups) // 2), None
        for chunk in self._chunks(middle, len(groups)):
            if chunk.start == middle:
                half = self._flat()
            part = objectives.loss(self.objective, self._batch(groups[chunk], prompts[chunk], rewards[chunk], total))
            part.value.backward()
            parts.append(part._replace(value=part.value.detach()))
        vector = self._flat()
        metrics = objectives.merge(parts)
        if half is not None:
            metrics["cosine"] = _cosine(half, vector - half)
        self.policy.module.zero_grad(set_to_none=True)
        metrics["lag_versions"] = sum(self.version - group.version for group in groups) / len(groups)
        metrics["lag_seconds"] = sum(now - group.times.released for group in groups) / len(groups)
        first = slice(len(groups[0].lengths))
        advantages, importance = (tuple(values[first].tolist()) for values in (parts[0].advantage, parts[0].weight))
        return Gradient(vector, len(groups), metrics, advantages, importance)

    def step(self, vector: Tensor) -> dict[str, float]:
        """Clip, AdamW, next version. Raises ValueError, with nothing changed, for a vector of another size or not finite."""
        if vector.shape != (self.size,):
            raise ValueError(f"this gradient has the shape {[*vector.shape]}, the policy has {self.size} parameters")
        norm = float(torch.linalg.vector_norm(vector.float()))
        if not math.isfinite(norm):
            raise ValueError("this gradient is not finite: a member's loss overflowed, or it sent damaged values")
        settings = self.run.optimizer
        clip = min(1.0, settings.grad_clip / (norm + 1e-6)) if settings.grad_clip > 0 else 1.0
        warm = min(1.0, (self._steps + 1) / max(1, settings.warmup))
        pieces = vector.split([parameter.numel() for parameter in self._parameters])
        for parameter, piece in zip(self._parameters, pieces, strict=True):
            parameter.grad = (piece * clip).view_as(parameter).to(parameter.device, parameter.dtype)
        self._optimizer.param_groups[0]["lr"] = settings.lr * warm
        self._optimizer.step()
        self.policy.module.zero_grad(set_to_none=True)
        self._steps += 1
        self.version += 1
        return {"grad_norm": norm, "lr": settings.lr * warm}

    def weights(self) -> bytes:
        """The policy as it is released: bf16 safetensors."""
        return weights.to_bytes(self.policy.module.state_dict())

    def load(self, data: bytes, version: int, fresh: bool = False) -> None:
        """Become version `version` with the released weights; `fresh` also forgets the moments and warms up again.

        Raises ValueError, with nothing changed, when `data` is damaged or of another model.
        """
        weights.load_into(self.policy.module, data)
        self.version = version
        if fresh:
            self._steps, self._optimizer = 0, self._new_optimizer()

    def state(self, extra: Mapping[str, object] | None = None) -> bytes:
        """Everything that the next step depends on: fp32 weights, moments, counts. `extra` is plain JSON."""
        tensors = {f"weight/{name}": parameter for name, parameter in self._named()}
        for name, parameter in self._named():
            for moment, value in self._optimizer.state.get(parameter, {}).items():
                tensors[f"{moment}/{name}"] = value
        return checkpoint.pack(tensors, {"version": self.version, "steps": self._steps, "extra": extra or {}})

    def become(self, state: bytes) -> dict[str, Any]:
        """Continue exactly where another learner, or an earlier life, was; returns its `extra`.

        Raises ValueError, with nothing changed, when `state` is damaged or of another model.
        """
        tensors, facts = checkpoint.unpack(state)
        for name, parameter in self._named():
            wanted = [f"weight/{name}", *([f"exp_avg/{name}", f"exp_avg_sq/{name}"] if f"step/{name}" in tensors else [])]
            if any(key not in tensors or tensors[key].shape != parameter.shape for key in wanted):
                raise ValueError(f"this checkpoint is of another model: {name} is missing or of another shape")
        self._optimizer = self._new_optimizer()
        with torch.no_grad():
            for name, parameter in self._named():
                parameter.copy_(tensors[f"weight/{name}"])
                if f"step/{name}" in tensors:
                    self._optimizer.state[parameter] = {
                        "step": tensors[f"step/{name}"],
                        "exp_avg": tensors[f"exp_avg/{name}"].to(parameter.device),
                        "exp_avg_sq": tensors[f"exp_avg_sq/{name}"].to(parameter.device),
                    }
        self.version, self._steps = int(facts["version"]), int(facts["steps"])
        return dict(facts["extra"])

    def save(self, folder: Path, extra: Mapping[str, object] | None = None) -> None:
        """Write a checkpoint: complete, or the one before stays. The random state of torch is part of it."""
        rng = {"rng": torch.get_rng_state().numpy().tobytes().hex()}
        checkpoint.write(folder, self.state({**rng, "own": dict(extra or {})}))

    def restore(self, folder: Path) -> dict[str, Any]:
        """Continue from a checkpoint; returns its `extra`.

        Raises FileNotFoundError when there is none, ValueError (nothing changed) when it is damaged or of another model.
        """
        extra = self.become(checkpoint.read(folder))
        torch.set_rng_state(torch.frombuffer(bytearray.fromhex(extra["rng"]), dtype=torch.uint8))
        return dict(extra["own"])

    def statistics(self) -> dict[str, float]:
        return {"version": self.version, "steps": self._steps, "parameters": self.size}

    def _named(self) -> Iterator[tuple[str, torch.nn.Parameter]]:
        return zip(self._names, self._parameters, strict=True)

    def _new_optimizer(self) -> torch.optim.Optimizer:
        settings = self.run.optimizer
        return torch.optim.AdamW(
            self._parameters, lr=settings.lr, betas=(settings.beta1, settings.beta2), weight_decay=settings.weight_decay
        )

    def _chunks(self, middle: int, groups: int) -> Iterator[slice]:
        """Micro-batches of at most `run.batch.micro` groups; one of the cuts is in the middle."""
        for start, stop in ((0, middle), (middle, groups)):
            for cut in range(start, stop, self.run.batch.micro):
                yield slice(cut, min(cut + self.run.batch.micro, stop))

    def _flat(self) -> Tensor:
        """The gradient so far."""
        flat = torch.cat([torch.zeros_like(p).flatten() if p.grad is None else p.grad.flatten() for p in self._parameters])
        return flat.float().cpu()

    def _batch(
        self, groups: Sequence[Group], prompts: Sequence[str], rewards: Sequence[tuple[float, ...]], total: objectives.Total
    ) -> objectives.Batch:
        rows, asked, sampled, owner, lag = [], [], [], [], []
        for i, (group, prompt) in enumerate(zip(groups, prompts, strict=True)):
            cuts = np.cumsum(group.lengths)[:-1]
            rows += [row.tolist() for row in np.split(np.frombuffer(group.tokens.data, "<i4"), cuts)]
            sampled += np.split(np.frombuffer(group.logprobs.data, "<f4"), cuts)
            asked += [prompt] * len(group.lengths)
            owner += [i] * len(group.lengths)
            lag += [self.version - group.version] * len(group.lengths)
        scored = self.policy.logprobs(asked, rows, self.run.sampling.temperature)
        logq = np.zeros(tuple(scored.logp.shape), np.float32)
        for i, values in enumerate(sampled):
            logq[i, : len(values)] = values
        device = scored.logp.device
        return objectives.Batch(
            logp=scored.logp,
            logq=torch.from_numpy(logq).to(device),
            mask=scored.mask,
            reward=torch.tensor([r for group in rewards for r in group], device=device),
            group=torch.tensor(owner, device=device),
            lag=torch.tensor(lag, device=device),
            entropy=scored.entropy,
            horizon=float(self.run.sampling.max_tokens),
            total=total,
        )


def _cosine(a: Tensor, b: Tensor) -> float:
    """Between the gradients of two half batches: near 1 both say the same, near 0 noise hides the signal. 0 if one is 0."""
    return float(torch.nn.functional.cosine_similarity(a, b, dim=0))
