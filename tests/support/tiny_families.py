"""Models of transformers' families with some thousand random weights, and a tokenization of 61 tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import transformers

SIZES = {
    "vocab_size": 61,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 8,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
CLASSES = {"GPT2": ("GPT2LMHeadModel", "GPT2Config"), "Llama4": ("Llama4ForCausalLM", "Llama4TextConfig")}
"""Families whose classes are not FAMILYForCausalLM and FAMILYConfig."""


class Letters:
    ends: Sequence[int] = ()

    def encode(self, prompts: list[str]) -> list[list[int]]:
        return [[ord(letter) % 61 for letter in prompt] for prompt in prompts]


def tiny(family: str, layers: int, **extra: Any) -> Any:
    torch.manual_seed(3)
    model, config = CLASSES.get(family, (f"{family}ForCausalLM", f"{family}Config"))
    sizes = SIZES | {"num_hidden_layers": layers} | extra
    return getattr(transformers, model)(getattr(transformers, config)(**sizes)).eval()
