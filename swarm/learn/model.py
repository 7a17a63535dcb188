"""A policy from a folder: config, tokenizer and, if they are there, weights, as `save_pretrained` writes them.

A joiner has the folder without weights (they come with the newest release); the owner of a run has them. Code that a folder
brings along is never run. The fp32 master copy is what a learner trains; a sampler's copy may be smaller.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer
from transformers.utils import logging as transformers_logging

from swarm.learn import weights

transformers_logging.disable_progress_bar()  # a bar per load would run through the swarm's own live view

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


def load_policy(folder: Path, device: str = "cpu", data: bytes | None = None) -> PreTrainedModel:
    """The model of `folder` in fp32, without dropout, in eval mode.

    Weights are `data` (bf16 safetensors) when given, else the folder's own; a folder without any gives a model whose weights
    mean nothing until a release is loaded. Raises ValueError when `data` is of another model, OSError without a config.
    """
    if data is None and any(folder.glob("*.safetensors")):
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    else:
        with torch.random.fork_rng(devices=[]):
            model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder), dtype=torch.float32)
        if data is not None:
            weights.load_into(model, data)
    return model.to(device).eval()


def load_tokenizer(folder: Path) -> PreTrainedTokenizerBase:
    tokenizer = AutoTokenizer.from_pretrained(folder)
    if tokenizer.eos_token_id is None:
        raise ValueError(f"the tokenizer in {folder} has no end token: completions could not end; set eos_token in its config")
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token  # padding is masked everywhere: which token it is does not matter
    return tokenizer
