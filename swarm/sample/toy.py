"""The simulator's engine: samples from a table of logits in numpy, about 50 microseconds a group.

Weights are safetensors bytes as for every engine; `decode` (bytes -> named tensors) is an argument, because
engines do not import swarm.learn.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from swarm.sample.base import Completions
from swarm.weights import Weights

if TYPE_CHECKING:
    from torch import Tensor


class ToyEngine:
    """See Engine. A prompt is a decimal number and selects a row of the table modulo its size."""

    name = "toy"

    def __init__(self, decode: Callable[[bytes], Mapping[str, Tensor]], temperature: float = 1.0) -> None:
        self._decode = decode
        self._temperature = temperature
        self._groups = 0
        self._shapes: dict[str, list[int]] | None = None
        """Of the first weights."""
        self.version = -1

    def load(self, weights: Weights) -> None:
        tensors = self._decode(weights.data)
        if "logits" not in tensors or tensors["logits"].ndim != 3:
            raise ValueError(f"these weights are not a table of logits: {sorted(tensors)[:3]}")
        shapes = {name: [*tensor.shape] for name, tensor in tensors.items()}
        if self._shapes not in (None, shapes):
            raise ValueError(f"these weights are of another model: {shapes}, here {self._shapes}")
        self._shapes = shapes
        logits = tensors["logits"].float().numpy().astype(np.float64) / self._temperature
        logits -= logits.max(-1, keepdims=True)
        self._logp = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
        self._cdf = np.exp(self._logp).cumsum(-1)
        self._cdf[..., -1] = 1.0  # rounding must not leave a gap above the last token
        self.version = weights.version

    def sample(self, prompts: Sequence[str], group_size: int, seed: int) -> list[Completions]:
        self._groups += len(prompts)
        return [self._group(prompt, group_size, seed + i) for i, prompt in enumerate(prompts)]

    def greedy(self, prompts: Sequence[str]) -> list[str]:
        buckets = len(self._logp)
        return [_text(self._logp[int(prompt) % buckets].argmax(-1)) for prompt in prompts]

    def statistics(self) -> dict[str, float]:
        return {"version": self.version, "groups": self._groups}

    def close(self) -> None:
        """Nothing to free."""

    def _group(self, prompt: str, group_size: int, seed: int) -> Completions:
        bucket = int(prompt) % len(self._cdf)
        cdf, logp = self._cdf[bucket], self._logp[bucket]
        letters = len(cdf)
        draws = np.random.Generator(np.random.Philox(key=seed % (1 << 64))).random((group_size, letters, 1))
        tokens = (draws >= cdf).sum(-1)
        return Completions(
            lengths=(letters,) * group_size,
            tokens=tokens.astype(np.int32).ravel(),
            logprobs=logp[np.arange(letters), tokens].astype(np.float32).ravel(),
            texts=tuple(map(_text, tokens)),
        )


def _text(tokens: Sequence[int] | np.ndarray) -> str:
    return bytes((np.asarray(tokens) + ord("a")).astype(np.uint8)).decode()
