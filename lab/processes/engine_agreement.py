"""Compares a sampler engine's log-probabilities with the learner's, and times releases, for the row
`engines`.

    python -m lab.processes.engine_agreement '{"engine": "hf", "model": ..., "tokens": 64}'
    {"do": "arrive", "training": "full"}    -> {"with": [seconds], "without": [seconds], "bytes"}
    {"do": "agree", "kind": "bfloat16"}     -> {"tokens", "against": {what: {"mean", "p99", "max"}}}

Seconds are those to a first token, differences those of log-probabilities in nats.

A release is given as bytes: fetching is not measured. An engine's log-probabilities of the tokens that it
sampled are compared with those that a learner computes from the same release, in float32 and in the engine's
precision; those of an engine with quantized weights also with the quantized policy.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from lab.processes.sampling import parts, settings
from lab.processes.training import genesis
from lab.swarms.partner import Answer, answer_all, opened, say
from swarm.sample.base import Completions
from swarm.storage.weights import Weights

if TYPE_CHECKING:
    import numpy as np

TIMES = 7
"""Releases that are timed, after one to warm up."""

TASKS, GROUP = 16, 8
"""Tasks, and completions of each, whose tokens are compared: some eight thousand tokens, so that eighty lie
beyond the p99."""

QUANTIZED = ("int8", "nf4")


def arrive(setup: Answer, training: str) -> Answer:
    """Seconds to a first token, with a release before it and without."""
    config = settings({**setup, "tokens": 1}, f"run.model.training={training}")
    first = genesis(Path(setup["model"]), config)
    releases = [first, changed(first)]
    engine, source = parts(setup, config)
    spent: dict[str, list[float]] = {"with": [], "without": []}
    for i in range(1 + TIMES):
        weights = Weights.of(releases[i % 2], i + 1)
        began = time.perf_counter()
        engine.load(weights)
        engine.sample([source.task(2 * i).prompt], 1, [i])
        loaded = time.perf_counter()
        engine.sample([source.task(2 * i + 1).prompt], 1, [i])
        spent["with"].append(loaded - began)
        spent["without"].append(time.perf_counter() - loaded)
    engine.close()
    return {way: seconds[1:] for way, seconds in spent.items()} | {"bytes": len(first)}


def changed(data: bytes) -> bytes:
    """The bytes of another release of the same model."""
    import torch

    from swarm.learn.files import weights

    random = torch.Generator().manual_seed(1)
    tensors = {name: tensor.float() for name, tensor in weights.from_bytes(data).items()}
    return weights.to_bytes(
        {name: t + 0.01 * torch.randn(t.shape, generator=random) for name, t in tensors.items()}
    )


def agree(setup: Answer, kind: str) -> Answer:
    import numpy as np

    quantize = kind if kind in QUANTIZED else "none"
    dtype = "float32" if kind in QUANTIZED else kind
    asked = (f"peer.engine.dtype={dtype}", f"peer.engine.quantize={quantize}", "run.sampling.quantized=true")
    engine, source = parts(setup, settings(setup, *asked))
    prompts = [source.task(i).prompt for i in range(TASKS)]
    groups = engine.sample(prompts, GROUP, range(TASKS))
    engine.close()
    said = np.concatenate([group.logprobs for group in groups])
    against = {"the learner in float32": ("float32", "none")}
    if kind == "bfloat16":
        against["the learner in bfloat16"] = ("bfloat16", "none")
    if quantize != "none":
        against[f"the policy in {kind}"] = ("float32", quantize)
    seen = {what: spread(said - scored(setup, prompts, groups, *how)) for what, how in against.items()}
    return {"tokens": len(said), "against": seen}


def scored(
    setup: Answer, prompts: Sequence[str], groups: Sequence[Completions], dtype: str, quantize: str
) -> np.ndarray:
    """Log-probabilities of the groups' tokens as a learner computes them, flat, in the order of the
    groups."""
    import numpy as np
    import torch

    from swarm.learn.models import tokenization
    from swarm.learn.models.model import load_policy
    from swarm.learn.models.policy import LanguageModel

    folder = Path(setup["model"])
    model = LanguageModel(load_policy(folder, "cpu", dtype, quantize=quantize), tokenization.load(folder))
    out = []
    for prompt, group in zip(prompts, groups, strict=True):
        rows = [row.tolist() for row in np.split(group.tokens, np.cumsum(group.lengths)[:-1])]
        with torch.inference_mode():
            part = model.logprobs([prompt] * len(rows), rows, 1.0)
        out.append(part.logp[part.mask].float().numpy())
    return np.concatenate(out)


def spread(differences: np.ndarray) -> dict[str, float]:
    import numpy as np

    size = np.abs(differences.astype(np.float64))
    return {"mean": float(size.mean()), "p99": float(np.quantile(size, 0.99)), "max": float(size.max())}


async def _answer(setup: Answer, asked: Answer) -> Answer:
    return arrive(setup, asked["training"]) if asked["do"] == "arrive" else agree(setup, asked["kind"])


def main() -> int:
    import torch

    torch.set_num_threads(1)
    setup = opened()
    say()

    async def answer(asked: Answer) -> Answer:
        return await _answer(setup, asked)

    asyncio.run(answer_all(answer))
    return 0


if __name__ == "__main__":
    sys.exit(main())
