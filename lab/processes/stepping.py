"""Real steps of a random Llama in a process of its own, for the row `patches`: the sizes of the patches
between its releases, and the cost of making and applying them.

    python -m lab.processes.stepping '{"model": ..., "steps": 16, "versions": 8, "rates": [1e-6, ...]}'
        -> {"step"} after each, `_compared` of each rate in order, and
           {"parameters", "bytes" of a release, "composed": {"one", "parts"} in bytes}

Gradients are those of the run's objective on made-up groups, new ones for every step. Weights have the spread
of a language model's and lie anywhere between two bf16 values, as those of a policy do that has been trained
for a while. Steps are at the first rate; one more is taken at each rate, from the same weights, moments and
gradient. Others' formats are made of the same blocks with the same zstd, and their times with the same clock.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import zstandard

from lab.processes.made_groups import made_group
from lab.swarms.partner import Answer, opened, say
from swarm.norm import norm
from swarm.processes.processors import processors
from swarm.settings import loading
from swarm.storage import patches

BLOCK = 1 << 20
"""Bytes that a patch is made of at a time."""

SPREAD = 0.02
"""Standard deviation of a weight: language models begin with about that, and keep it."""

TURNS = 3
"""Each time is the middle one of so many."""

SIZE, TOKENS = 4, 64
"""Completions of a group, and tokens of each."""

PROMPT = "What is the sum of 3 and 5?"

SETTINGS = {
    "run.model.training": "full",
    "run.optimizer.name": "adamw",
    "run.batch.groups": 4,
    "run.batch.micro": 2,
    "run.sampling.group_size": SIZE,
    "run.sampling.max_tokens": TOKENS,
    "run.optimizer.lr": 1e-6,
}

Blocks = Sequence[patches.Block]
Coder = Callable[[patches.Block, patches.Block], patches.Block]


class Steps:
    """A model, its optimizer and ever new gradients."""

    def __init__(self, model: Path) -> None:
        import torch

        from peers.build.model import factory
        from swarm.learn.learners.learner import Learner
        from swarm.learn.learners.optimizers import MasterOptimizer
        from swarm.storage.weights import Weights

        torch.set_num_threads(processors())
        torch.manual_seed(0)
        config = loading.load(None, [f"{name}={value}" for name, value in SETTINGS.items()]).config
        learner, self._tokenization = factory.learner(model, config)
        assert isinstance(learner, Learner)
        learner.load(Weights.of((model / "model.safetensors").read_bytes(), 0))
        self._learner, self._groups = learner, 0
        module: Any = learner.policy.module
        _scatter(module)
        self.optimizer = MasterOptimizer(dict(module.named_parameters()), config.run.optimizer)

    def gradient(self) -> Any:
        """(P,) float32, of a group of its own."""
        group = made_group(self._groups, (TOKENS,) * SIZE, self._tokenization.vocabulary)
        self._groups += 1
        return self._learner.gradient([group], [PROMPT], [group.rewards], time.time()).vector

    def step(self, vector: Any, rate: float) -> None:
        self.optimizer.step(vector, min(1.0, 1.0 / norm(vector)), rate)

    def release(self) -> Blocks:
        data = self._learner.weights().data
        return [data[at : at + BLOCK] for at in range(0, len(data), BLOCK)]


def main() -> int:
    setup = opened()
    for answer in _answers(setup, Steps(Path(setup["model"]))):
        say(**answer)
    return 0


def _answers(setup: Answer, steps: Steps) -> Iterator[Answer]:
    rates = setup["rates"]
    first: Blocks = []
    last: Blocks = []
    parts: list[list[bytes]] = []
    for step in range(setup["steps"]):
        if step == setup["steps"] - setup["versions"]:
            first = last = steps.release()
        steps.step(steps.gradient(), rates[0])
        if last:
            before, last = last, steps.release()
            parts.append(list(map(patches.encode, before, last)))
        yield {"step": step}
    whole = [patches.compose(chain, len(block)) for *chain, block in zip(*parts, first, strict=True)]
    _same(list(map(patches.apply, first, whole)), last)
    state = {name: tensor.clone() for name, tensor in steps.optimizer.dump().items()}
    vector = steps.gradient()
    for rate in rates:
        steps.optimizer.load(state)
        steps.step(vector, rate)
        yield {"rate": rate, **_compared(last, steps.release())}
    yield {
        "parameters": vector.numel(),
        "bytes": _size(last),
        "composed": {"one": _size(whole), "parts": sum(map(_size, parts))},
    }


def _scatter(module: Any) -> None:
    import torch

    from swarm.learn.models import tiny

    with torch.no_grad():
        for parameter in module.parameters():
            if parameter.dim() > 1:
                parameter.mul_(SPREAD / tiny.INIT_STD)
            # Two bf16 values lie a 128th apart at most, a 256th at least.
            parameter.mul_(1 + (torch.rand_like(parameter) - 0.5) / 128)


# --- formats ------------------------------------------------------------------------------------------------


def _compared(old: Blocks, new: Blocks) -> Answer:
    """Values that changed; bytes in each format; CPU seconds of making (`encode`) and applying (`apply`)
    patches and XORs."""
    changed = [np.flatnonzero(_xor(*pair)) for pair in zip(old, new, strict=True)]
    ways = {"patch": (patches.encode, patches.apply), "xor": (_compressed_xor, _apply_xor)}
    told: Answer = {
        name: _middle([_once(*way, old, new) for _ in range(TURNS)]) for name, way in ways.items()
    }
    told["values"] = {"bytes": _size(list(map(_gaps_and_values, changed, new)))}
    return {"changed": sum(map(len, changed)), **told}


def _once(encode: Coder, apply: Coder, old: Blocks, new: Blocks) -> Answer:
    """Block after block, each result dropped before the next: a receiver writes it where the old one was."""
    told: Answer = {"bytes": 0, "encode": 0.0, "apply": 0.0}
    for before, after in zip(old, new, strict=True):
        began = time.process_time()
        patch = encode(before, after)
        middle = time.process_time()
        restored = apply(before, patch)
        end = time.process_time()
        _same([restored], [after])
        told["bytes"] += len(patch)
        told["encode"] += middle - began
        told["apply"] += end - middle
    return told


def _middle(turns: list[Answer]) -> Answer:
    """The middle value of each."""
    return {key: median(turn[key] for turn in turns) for key in turns[0]}


def _same(out: Blocks, wanted: Blocks) -> None:
    if list(out) != list(wanted):
        raise AssertionError("a patch gave other bytes than those that it was made of")


def _size(blocks: Blocks) -> int:
    return sum(map(len, blocks))


_zstd, _unzstd = zstandard.ZstdCompressor(1), zstandard.ZstdDecompressor()


def _xor(old: patches.Block, new: patches.Block) -> Any:
    return np.frombuffer(old, np.uint16) ^ np.frombuffer(new, np.uint16)


def _compressed_xor(old: patches.Block, new: patches.Block) -> bytes:
    return _zstd.compress(_xor(old, new).data)


def _apply_xor(old: patches.Block, patch: patches.Block) -> patches.Block:
    new: memoryview = _xor(old, _unzstd.decompress(patch)).view(np.uint8).data
    return new


def _gaps_and_values(positions: Any, new: patches.Block) -> bytes:
    """Where values changed, a byte a gap as in our own format, and their new values."""
    more, last = np.divmod(np.diff(positions, prepend=-1) - 1, 255)
    gaps = np.insert(last, np.repeat(np.arange(len(last)), more), 255).astype(np.uint8)
    return _zstd.compress(gaps.data) + _zstd.compress(np.frombuffer(new, np.uint16)[positions].data)


if __name__ == "__main__":
    sys.exit(main())
