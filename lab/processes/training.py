"""Measures a learner's steps in its own process, for the row `engines`: seconds, and peak memory.

    python -m lab.processes.training '{"model": ..., "training": "full", "optimizer": "adamw"}'
        -> {"seconds": [of each step], "steps", "mib", "where", "tokens", "size"}

Groups have random tokens, and every other completion is rewarded. Memory is the peak of a GPU's allocator, or
the peak of this process's resident set above its size after all imports, from the first weight to the last
step.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from lab.figures.resident import NOW, resident
from lab.swarms.partner import Answer, opened, say
from swarm.settings import loading
from swarm.settings.config import Config
from swarm.storage.weights import Weights
from swarm.types import Array, Digest, Group, PeerId, Times

GROUPS, SIZE, TOKENS, MICRO = 4, 4, 64, 2
"""Of a batch: its activations stay below what weights, gradient and moments take."""

PROMPT = "What is the sum of 3 and 5?"
STEPS = 3
MIB = 1 << 20


def main() -> int:
    say(**_measured(opened()))
    return 0


def _measured(setup: Answer) -> Answer:
    import bitsandbytes  # type: ignore[import-untyped]  # noqa: F401 (what only some kinds import is in nobody's peak)
    import peft  # noqa: F401
    import torch

    from peers.build.model import factory
    from swarm.learn.learners import microbatch

    torch.set_num_threads(1)
    config, model = settings(setup), Path(setup["model"])
    gpu = torch.cuda.is_available()
    before = 0 if gpu else resident(NOW)
    gauge = microbatch.PeakMemory(torch.device("cuda" if gpu else "cpu"))
    gauge.start()
    learner, tokenization = factory.learner(model, config)
    learner.load(Weights.of(genesis(model, config), 0))
    gauge.rise()
    groups = [made(i, tokenization.vocabulary) for i in range(GROUPS)]
    seconds, peaks = [], [gauge.peak]
    for _ in range(1 + STEPS):
        began = time.perf_counter()
        gradient = learner.gradient(
            groups, [PROMPT] * GROUPS, [group.rewards for group in groups], time.time()
        )
        middle = time.perf_counter()
        peaks.append(int(learner.statistics()["peak"]))
        gauge.start()
        resumed = time.perf_counter()
        learner.step(gradient.vector)
        seconds.append(time.perf_counter() - resumed + middle - began)
        gauge.rise()
    return {
        "seconds": seconds[1:],
        "steps": STEPS,
        "mib": (max(*peaks, gauge.peak) - before) / MIB,
        "where": "on the GPU" if gpu else "above imports",
        "tokens": GROUPS * SIZE * TOKENS,
        "size": learner.size,
    }


def settings(setup: Answer) -> Config:
    own = {
        "run.model.training": setup["training"],
        "run.optimizer.name": setup["optimizer"],
        "run.batch.groups": GROUPS,
        "run.batch.micro": MICRO,
        "run.sampling.group_size": SIZE,
        "run.sampling.max_tokens": TOKENS,
        "run.optimizer.lr": 1e-6,
    }
    return loading.load(None, [f"{name}={value}" for name, value in own.items()]).config


def genesis(model: Path, config: Config) -> bytes:
    """Version 0: the folder's weights, or an adapter that changes nothing."""
    from swarm.learn.models import adapters

    if config.run.model.training == "full":
        return (model / "model.safetensors").read_bytes()
    return adapters.genesis(model, config.run.lora, config.run.seed)


def made(number: int, vocabulary: int) -> Group:
    import numpy as np

    count = SIZE * TOKENS
    tokens = np.random.default_rng(number).integers(0, vocabulary, count).astype("<i4")
    logprobs = np.full(count, -np.log(vocabulary), "<f4")
    return Group(
        id=f"{number:032x}",
        sampler=PeerId("bench"),
        task=number,
        version=0,
        weights=Digest("0" * 64),
        draw=0,
        seed=number,
        lengths=(TOKENS,) * SIZE,
        tokens=Array(dtype="int32", shape=(count,), data=tokens.tobytes()),
        logprobs=Array(dtype="float32", shape=(count,), data=logprobs.tobytes()),
        rewards=tuple(float(i % 2) for i in range(SIZE)),
        times=Times(released=0.0, fetched=0.0, used=0.0, finished=0.0, sent=0.0),
    )


if __name__ == "__main__":
    sys.exit(main())
