"""Forward and backward passes of a batch in a process of its own, for the row `learner`.

    python -m lab.processes.passes '{"model": folder, or "", "layers": 10}' -> {"parameters"}
    {"prompt": 200, "tail": true, "way": "packed"}
        -> {"seconds" of CPU, "tokens" through the model, "distinct" ones, "bytes" at most,
            "logprobs", "gradient": differences to the way "one pass" before}

Without a folder the model has SmolLM2-135M's widths, random weights and fewer layers. Tokens are random, the
same for all ways; the loss is a sum of log-probabilities with a random advantage for each completion.
"""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from lab.swarms.partner import Answer, heard, opened, say
from swarm.learn.learners import microbatch
from swarm.learn.models.model import load_policy
from swarm.learn.models.policy import LanguageModel

GROUPS, SIZE = 4, 8
WAYS = {"packed": ("", False), "like lengths": ("to compare", False), "one pass": ("to compare", True)}
"""Way -> `padded` and `in_step` of a LanguageModel."""

ARCHITECTURE = {
    "vocab_size": 49152,
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "tie_word_embeddings": True,
}


class Numbered:
    """The part of a tokenization that a policy calls; a prompt is the number of its group."""

    ends: Sequence[int] = ()

    def __init__(self) -> None:
        self.prompts: list[list[int]] = [[1]]

    def encode(self, numbers: Sequence[str]) -> list[list[int]]:
        return [self.prompts[int(number)] for number in numbers]


class Passes:
    def __init__(self, model: str, layers: int) -> None:
        torch.set_num_threads(1)
        torch.manual_seed(0)
        self._model = load_policy(Path(model)) if model else _random(layers)
        self._tokens, self.passed = Numbered(), 0
        self._policy = LanguageModel(self._model, self._tokens)  # type: ignore[arg-type]
        self._policy.logprobs(["0"], [[5]], 1.0)
        self._model.base_model.register_forward_pre_hook(self._count, with_kwargs=True)
        self._compared: dict[tuple[int, bool], tuple[torch.Tensor, torch.Tensor]] = {}

    @property
    def parameters(self) -> int:
        return sum(parameter.numel() for parameter in self._model.parameters())

    @property
    def padded(self) -> str:
        return self._policy.padded

    def _count(self, _: Any, args: Any, inputs: Any) -> None:
        self.passed += inputs["input_ids"].numel()

    def pass_of(self, prompt: int, tail: bool, way: str) -> Answer:
        """A pass of GROUPS groups of SIZE completions, of 4 to 16 tokens, or with a `tail` up to 256."""
        rows = self._drawn(prompt, tail)
        numbers = [str(i // SIZE) for i in range(len(rows))]
        generator = torch.Generator().manual_seed(0)
        advantage = torch.randn(len(rows), 1, generator=generator)
        (self._policy.padded, self._policy.in_step), self.passed = WAYS[way], 0
        self._model.zero_grad(set_to_none=True)
        device = torch.device("cpu")
        microbatch.free(device)
        gauge = microbatch.PeakMemory(device)
        gauge.start()
        began = time.process_time()
        scores = self._policy.logprobs(numbers, rows, 1.0)
        (scores.logp * advantage)[scores.mask].sum().backward()
        seconds, rise = time.process_time() - began, gauge.rise()
        logprobs = scores.logp[scores.mask].detach()
        gradient = torch.cat(
            [each.grad.flatten() for each in self._model.parameters() if each.grad is not None]
        )
        wanted, direction = self._compared.setdefault((prompt, tail), (logprobs, gradient))
        return {
            "seconds": seconds,
            "tokens": self.passed,
            "distinct": GROUPS * prompt + sum(len(row) - 1 for row in rows),
            "bytes": rise,
            "logprobs": float((logprobs - wanted).abs().max()),
            "gradient": float((gradient - direction).norm() / direction.norm()),
        }

    def _drawn(self, prompt: int, tail: bool) -> list[list[int]]:
        rng = random.Random(0)
        most = self._model.config.get_text_config().vocab_size

        def tokens(count: int) -> list[int]:
            return [rng.randrange(100, most) for _ in range(count)]

        self._tokens.prompts = [tokens(prompt) for _ in range(GROUPS)]
        return [
            tokens(max(4, min(256, int(rng.lognormvariate(3.4, 0.9)))) if tail else rng.randint(4, 16))
            for _ in range(GROUPS * SIZE)
        ]


def _random(layers: int) -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    return LlamaForCausalLM(LlamaConfig(**ARCHITECTURE, num_hidden_layers=layers)).eval()


def main() -> int:
    setup = opened()
    passes = Passes(setup["model"], setup["layers"])
    say(parameters=passes.parameters, padded=passes.padded)
    while (asked := heard()) is not None:
        say(**passes.pass_of(**asked))
    return 0


if __name__ == "__main__":
    sys.exit(main())
