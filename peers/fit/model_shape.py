"""Reads a model's shape from its config: the sizes behind predictions of memory and speed.

    config.json --(transformers, meta device: shapes without values)--> ModelShape

Not handled: mixtures of experts, whose fused expert weights are not linear layers, count as if every expert
ran on every token; sliding-window attention counts as full attention. Both predict too much rather than too
little.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn
from transformers import AutoModelForCausalLM
from transformers.pytorch_utils import Conv1D

from peers.errors import WrongUsage
from peers.fit.estimates import ModelShape
from swarm.learn.models.pretrained import config_of
from swarm.sample import hf


def examine(folder: Path, targets: str = "all-linear") -> ModelShape:
    """The model in `folder`; `targets` as in `run.lora.targets`. Raises WrongUsage for what transformers
    cannot build."""
    try:
        config = config_of(folder)
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(config)
    except (OSError, ValueError, KeyError, ImportError) as error:
        first = (str(error).splitlines() or [type(error).__name__])[0]
        raise WrongUsage(
            f"{folder} holds no causal language model that transformers can build: {first}"
        ) from error
    head = model.get_output_embeddings()
    linear = [
        (name, module) for name, module in model.named_modules() if isinstance(module, nn.Linear | Conv1D)
    ]
    layers = {name: module for name, module in linear if module is not head}
    text = config.get_text_config()
    heads = int(getattr(text, "num_attention_heads", None) or 0)  # none in a pure state space
    size = int(getattr(text, "head_dim", None) or text.hidden_size // max(heads, 1))
    pairs = int(getattr(text, "num_key_value_heads", None) or heads)
    return ModelShape(
        parameters=sum(parameter.numel() for parameter in model.parameters()),
        linear=sum(module.weight.numel() for module in layers.values()),
        spread=sum(sum(module.weight.shape) for module in layers.values()),
        targeted=sum(
            sum(module.weight.shape) for name, module in layers.items() if _gets_adapter(name, targets)
        ),
        head=int(text.vocab_size) * int(text.hidden_size),
        vocabulary=int(text.vocab_size),
        hidden=int(text.hidden_size),
        layers=int(text.num_hidden_layers),
        cache=2 * int(text.num_hidden_layers) * pairs * size,
        longest=int(getattr(text, "max_position_embeddings", 0) or 0),
        refusal=hf.refusal(model),
    )


def _gets_adapter(name: str, targets: str) -> bool:
    return targets == "all-linear" or name.rpartition(".")[2] in {
        target.strip() for target in targets.split(",")
    }
