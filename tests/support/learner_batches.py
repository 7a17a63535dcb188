"""Learners on tiny real models, and batches of made-up groups for them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

from swarm.learn.learners.base_learner import Gradient
from swarm.learn.learners.learner import Learner
from swarm.learn.models import tiny, tokenization
from swarm.learn.models.model import load_policy
from swarm.learn.models.policy import LanguageModel
from swarm.settings.config import BatchSize, Lora, Model, Optimizer, Run, Training
from swarm.types import Array, Digest, Group, PeerId, Times

PROMPTS = ("What is 3 plus 4?", "Sort 5 2 9.", "Say 7.")
Batch = tuple[list[Group], list[str], list[tuple[float, ...]]]
KINDS = ("full", "lora", "qlora")


def settings(
    training: Any = "full", optimizer: Any = "adamw", micro: int = 32, lr: float = 1e-3, rank: int = 4
) -> Run:
    return Run(
        model=Model(training=training),
        lora=Lora(rank=rank, alpha=8.0),
        batch=BatchSize(micro=micro),
        optimizer=Optimizer(name=optimizer, lr=lr, warmup=1),
    )


def policy(folder: Path, run: Run, dtype: str = "float32") -> LanguageModel:
    kind = run.model.training
    model = load_policy(
        folder,
        "cpu",
        dtype,
        quantize="nf4" if kind == "qlora" else "none",
        lora=None if kind == "full" else run.lora,
    )
    return LanguageModel(model, tokenization.load(folder))


def learner(
    folder: Path, run: Run, training: Training | None = None, dtype: str = "float32", ram: Any = None
) -> Learner:
    return Learner(policy(folder, run, dtype), run, training, ram)


def model(target: Path, family: str) -> Path:
    return tiny.make(target / family, family)


@torch.no_grad()
def batch(of: LanguageModel, groups: int, seed: int = 0, completions: int = 4, longest: int = 5) -> Batch:
    """Random tokens, of which the policy says how likely it finds them; every group has right and wrong
    ones."""
    rng = np.random.default_rng(seed)
    out: Batch = ([], [], [])
    for index in range(groups):
        prompt = PROMPTS[index % len(PROMPTS)]
        rows = [rng.integers(3, 300, rng.integers(2, longest + 1)).tolist() for _ in range(completions)]
        scored = of.logprobs([prompt] * completions, rows, 1.0)
        tokens = np.concatenate(rows).astype("<i4")
        logprobs = scored.logp[scored.mask].float().numpy().astype("<f4")
        rewards = tuple(float(i % 2) for i in range(completions))
        group = Group(
            id=str(index),
            sampler=PeerId("s"),
            task=index,
            version=0,
            weights=Digest(""),
            draw=0,
            seed=index,
            lengths=tuple(map(len, rows)),
            tokens=Array(dtype="int32", shape=tokens.shape, data=tokens.tobytes()),
            logprobs=Array(dtype="float32", shape=logprobs.shape, data=logprobs.tobytes()),
            rewards=rewards,
            times=Times(released=100.0, fetched=100.0, used=100.0, finished=101.0, sent=101.0),
        )
        out[0].append(group)
        out[1].append(prompt)
        out[2].append(rewards)
    return out


def gradient(of: Learner, made: Batch) -> Gradient:
    return of.gradient(*made, 105.0)


@torch.no_grad()
def preference(of: Learner, made: Batch) -> float:
    """Nats by which a right completion's token is likelier than a wrong one's, in the mean."""
    total = 0.0
    for group, prompt, rewards in zip(*made, strict=True):
        cuts = np.cumsum(group.lengths)[:-1]
        rows = [row.tolist() for row in np.split(np.frombuffer(group.tokens.data, "<i4"), cuts)]
        scored = of.policy.logprobs([prompt] * len(rows), rows, 1.0)
        means = (scored.logp * scored.mask).sum(-1) / scored.mask.sum(-1)
        right = torch.tensor(rewards) > 0.5
        total += float(means[right].mean() - means[~right].mean())
    return total / len(made[0])
