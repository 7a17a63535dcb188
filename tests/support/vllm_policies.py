"""Tiny policies for the engines over vLLM, and how far an engine is from what the learner computes with the
same weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from msgspec.structs import replace
from nouns import seeds
from undecided_policy import rows

from peers.build.model import vllm_folder
from peers.build.model.engine_process import EngineProcess
from swarm.learn.files import weights
from swarm.learn.models import model, tokenization
from swarm.learn.models.policy import LanguageModel
from swarm.sample.base import Engine
from swarm.sample.vllm import Recipe
from swarm.settings.config import Config, Lora, Peer, Run, Sampling
from swarm.settings.config import EngineSettings as Settings
from swarm.storage.weights import Weights

LORA = Lora(rank=4, alpha=8.0)
TEMPERATURE = 0.8
PROMPTS = ["What is 3 and 5?", "1", "Think step by step, then"]
SAME = 1e-3
"""Nats: both compute in float32."""


OWN = {"timeout": 300.0, "length": 256}


def sampled(max_tokens: int = 12, heads: int = 4) -> Sampling:
    return Sampling(
        group_size=4, max_tokens=max_tokens, temperature=TEMPERATURE, heads=heads, replayable=heads > 0
    )


def hosted(folder: Path, lora: Lora | None = None, **settings: Any) -> EngineProcess:
    """In a process of its own, without a policy."""
    own, run = Settings(**{**OWN, **settings}), Run(sampling=sampled())
    if lora is not None:
        run = replace(run, lora=lora, model=replace(run.model, training="lora"))
    engine = EngineProcess(own, "vllm")
    engine.set_up(folder, Config(run=run, peer=Peer(engine=own)))
    return engine


def recipe(
    folder: Path, lora: Lora | None = None, max_tokens: int = 12, heads: int = 4, **settings: Any
) -> Recipe:
    said = tokenization.load(folder)
    own, sampling = {**OWN, **settings}, sampled(max_tokens, heads)
    if lora is None:
        return Recipe(Settings(**own), sampling, said, said.vocabulary, vllm_folder.whole(folder))
    write = vllm_folder.adapter(folder, lora)
    return Recipe(Settings(**own), sampling, said, said.vocabulary, write, base=folder, rank=lora.rank)


class Versions:
    """A policy that moves, as bytes for an engine."""

    def __init__(self, folder: Path, lora: Lora | None = None) -> None:
        self.module = model.load_policy(folder, lora=lora)
        self.learned = LanguageModel(self.module, tokenization.load(folder))
        self.version = -1

    def move(self, step: float = 0.05) -> Weights:
        torch.manual_seed(self.version + 1)
        with torch.no_grad():
            for tensor in weights.state(self.module).values():
                tensor.copy_((tensor + step * torch.randn_like(tensor)).bfloat16().float())
        self.version += 1
        return Weights.of(weights.release_bytes(self.module), self.version)

    def apart(self, engine: Engine) -> float:
        """Largest difference of a sampled token's log-probability, nats."""
        groups = engine.sample(PROMPTS, 4, seeds(7 + self.version, PROMPTS))
        asked = [prompt for prompt in PROMPTS for _ in range(4)]
        scored = self.learned.logprobs(asked, [row for group in groups for row in rows(group)], TEMPERATURE)
        mine = scored.logp.detach()[scored.mask].numpy()
        return float(np.abs(mine - np.concatenate([group.logprobs for group in groups])).max())
