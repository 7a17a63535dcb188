"""What a role works with, from a run's model folder: engines for samplers and evaluators, a learner with its tokenizer.

This is the one place that joins swarm.learn, swarm.sample and swarm.tasks, which do not know each other.
"""

from __future__ import annotations

from pathlib import Path

import torch

from peers.errors import CannotHere, WrongUsage
from peers.intake import Speech
from swarm.config import Config, Run
from swarm.learn.learner import Learner
from swarm.learn.model import load_policy, load_tokenizer
from swarm.learn.policy import LanguageModel
from swarm.learn.weights import load_into
from swarm.sample.base import Engine
from swarm.sample.hf import HfEngine


def size(model: Path) -> int:
    """Parameters of the model in this folder, without allocating them."""
    from transformers import AutoConfig, AutoModelForCausalLM

    with torch.device("meta"):
        empty = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(model))
    return sum(parameter.numel() for parameter in empty.parameters())


def learner(model: Path, run: Run) -> tuple[Learner, Speech]:
    """A learner whose weights mean nothing until it takes a release, and what admission needs of its tokenizer."""
    tokenizer = load_tokenizer(model)
    policy = load_policy(model, _device("auto"))
    vocabulary = policy.get_input_embeddings().num_embeddings
    decode = lambda tokens: tokenizer.decode(tokens, skip_special_tokens=True)  # noqa: E731 (a value, not a name)
    return Learner(LanguageModel(policy, tokenizer), run), Speech(vocabulary, decode)


def engine(model: Path, config: Config) -> Engine:
    """The sampling engine that `[peer.engine]` asks for. Raises WrongUsage for one that does not exist."""
    if config.peer.engine.name not in ("auto", "hf"):
        raise WrongUsage(f"engine {config.peer.engine.name!r} does not run language models here: use auto or hf")
    sampling = config.run.sampling
    policy = load_policy(model, _device(config.peer.engine.device))
    return HfEngine(policy, load_tokenizer(model), load_into, sampling.max_tokens, sampling.temperature)


def _device(name: str) -> str:
    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        return str(torch.zeros(0, device=name).device)
    except (RuntimeError, AssertionError) as error:
        raise CannotHere(f"device {name!r} is not here ({error}): use auto or cpu") from error
