"""Builds engines, learners, task sources and the tokenization from a run's settings and model folder.

This is the one module that joins swarm.learn, swarm.sample and swarm.tasks, which do not import each other.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import torch

from peers.build import base_model, engine_choice, vllm_folder
from peers.build.run_folder import RunFolder
from peers.errors import CannotHere, WrongUsage
from peers.fit import fits, hardware
from peers.fit.model_shape import examine
from swarm.config import Config, Run
from swarm.config_loading import SHARDED_SITES
from swarm.learn import adapters, tokenization
from swarm.learn.base_learner import BaseLearner
from swarm.learn.fsdp.driver import RankLost
from swarm.learn.fsdp.learner import ShardedLearner
from swarm.learn.lean_transformers import no_compilers
from swarm.learn.microbatch import ran_out
from swarm.learn.model import load_policy, loader
from swarm.learn.policy import LanguageModel
from swarm.learn.pretrained import config_of
from swarm.learn.replay import ModelReplay
from swarm.learn.site_learner import of_mode
from swarm.learn.tokenization import Tokenization
from swarm.sample.base import Engine, EngineError
from swarm.sample.hf import HfEngine
from swarm.sample.server import ServerEngine
from swarm.sample.vllm import Recipe, VllmEngine
from swarm.tasks import catalog as tasks
from swarm.tasks.base import Say, TaskSource
from swarm.tasks.rendered import Rendered

if TYPE_CHECKING:
    from peft import PeftModel
    from transformers import PreTrainedModel


def load_tokenization(model: Path, run: Run) -> Tokenization:
    """The run's tokenizer and chat template. Raises ModelError."""
    return tokenization.load(model, run.model.template, run.task.system)


def size(model: Path, run: Run) -> int:
    """Number of trained parameters of the model in this folder, without allocating them. Raises
    ModelError."""
    from transformers import AutoModelForCausalLM

    with torch.device("meta"), no_compilers():
        empty = AutoModelForCausalLM.from_config(config_of(model))
        trained = empty if run.model.training == "full" else adapters.wrap(empty, run.lora, run.seed)
    return sum(parameter.numel() for parameter in trained.parameters() if parameter.requires_grad)


def learner(model: Path, config: Config) -> tuple[BaseLearner, Tokenization]:
    """A learner, without a policy until it takes a release, and the run's tokenization.

    Raises UserError and ModelError when this machine cannot run it.
    """
    run, settings = config.run, config.peer.learner
    tokens = load_tokenization(model, run)
    share = config.peer.limits.gpu_memory
    if (gpus := learner_gpus(model, config)) > 1:
        if share < 1:
            raise CannotHere(
                f"peer.limits.gpu_memory is kept on one GPU, and this learner takes {gpus}: leave it out, or"
                " set peer.learner.gpus = 1"
            )
        try:
            devices = [f"cuda:{index}" for index in range(gpus)]
            return ShardedLearner(model, run, devices, settings, base_model.base(model, run)), tokens
        except (ValueError, RankLost) as error:
            raise CannotHere(f"no learner on {gpus} GPUs: {error}") from error
    quantize = "nf4" if run.model.training == "qlora" else "none"
    policy = _policy(model, run, _device(settings.device, share), settings.dtype, quantize)
    try:
        kind = of_mode(run)
        return kind(LanguageModel(policy, tokens), run, settings, ram=lambda: hardware.memory()[1]), tokens
    except ValueError as error:
        raise CannotHere(str(error)) from error


def replay(model: Path, config: Config) -> ModelReplay:
    """What a learner audits with: the policy once more, as its settings for training say.

    Raises UserError and ModelError when this machine cannot hold it.
    """
    run, settings = config.run, config.peer.learner
    tokens, quantize = load_tokenization(model, run), "nf4" if run.model.training == "qlora" else "none"
    device = _device(settings.device, config.peer.limits.gpu_memory)
    policy = LanguageModel(_policy(model, run, device, settings.dtype, quantize), tokens)
    load, sampling = loader(False), run.sampling
    return ModelReplay(policy, load, tokens.ends, sampling.max_tokens, sampling.temperature)


def learner_gpus(model: Path, config: Config) -> int:
    """Number of GPUs that a learner's model is split over; 1 also on a machine without any. Raises CannotHere
    when there are fewer than `peer.learner.gpus`.

    When that setting is 0: one if the model fits on it by `swarm fit`'s estimate, else all; a run that cannot
    be split (qlora, another optimizer than AdamW, sites) takes one.
    """
    run, settings = config.run, config.peer.learner
    there = torch.cuda.device_count() if settings.device in ("auto", "cuda") else 1
    if settings.gpus > 1 and run.averaging.mode == "sites":
        raise CannotHere(SHARDED_SITES)
    if settings.gpus > max(there, 1):
        raise CannotHere(
            f"peer.learner.gpus is {settings.gpus}, and peer.learner.device = {settings.device!r} is {there}"
            " here: set gpus to 0 and device to auto for what there is"
        )
    if settings.gpus > 0 or there < 2:
        return max(settings.gpus, 1)
    if run.model.training == "qlora" or run.optimizer.name != "adamw" or run.averaging.mode == "sites":
        return 1
    machine = hardware.lent(hardware.machine(), config.peer.limits)
    wanted = fits.row(fits.Case.of(model, config, machine), fits.LEARNER, run.model.training).gpus
    return min(there, max(1, wanted))


def source(run: RunFolder, config: Config, say: Say) -> TaskSource:
    """The run's task source, with prompts rendered for its model. Raises TaskError, or WrongUsage when the
    chat template does not fit.

    Reward code that came with the run is run as `peer.rewards.code` says; on the machine that started the run
    it is trusted.
    """
    task, folder = config.run.task, run.path / "task"
    code = "trust" if (run.path / "owner.key").exists() else config.peer.rewards.code
    plain = tasks.source(
        task, config.run.seed, folder=folder if folder.is_dir() else None, code=code, say=say
    )
    try:
        render = load_tokenization(run.model, config.run).render
        return Rendered(plain, render, say)
    except ValueError as error:
        plain.close()
        raise WrongUsage(str(error)) from error


def engine(model: Path, config: Config, say: Say = lambda line: None) -> Engine:
    """The engine that `[peer.engine]` names, or that `auto` chooses; `say` gets the choice and the reason. It
    has no policy until it loads a release.

    Raises UserError and ModelError when this machine, or this run, cannot use it.
    """
    run, asked = config.run, config.peer.engine
    gpus = hardware.lent(hardware.machine(), config.peer.limits).gpus
    parameters = examine(model).parameters if gpus and asked.name == "auto" else 0
    facts = engine_choice.EngineFacts(
        engine_choice.installed(), gpus, parameters, quantization(config), run.sampling.replayable
    )
    choice = engine_choice.choose(asked, facts)
    say(str(choice))
    if choice.name == "hf":
        return hf(model, config)
    recipe = _recipe(model, config)
    if choice.name == "vllm":
        return VllmEngine(recipe)
    small = run.model.training == "full" and vllm_folder.size(model) <= vllm_folder.REFERENCE
    try:
        server = ServerEngine(recipe, run.model.name, vllm_folder.score if small else None)
        server.check()
    except ValueError as error:
        raise WrongUsage(str(error)) from error
    except EngineError as error:
        raise CannotHere(str(error)) from error
    return server


def _recipe(model: Path, config: Config) -> Recipe:
    """The Recipe of the engines `vllm` and `vllm-server`."""
    run, tokens = config.run, load_tokenization(model, config.run)
    quantize, asked = quantization(config) != "none", config.peer.engine
    settings = msgspec.structs.replace(asked, memory=min(asked.memory, config.peer.limits.gpu_memory))
    if run.model.training == "full":
        return Recipe(
            settings,
            run.sampling,
            tokens,
            tokens.vocabulary,
            vllm_folder.whole(model),
            quantize=quantize,
        )
    return Recipe(
        settings,
        run.sampling,
        tokens,
        tokens.vocabulary,
        vllm_folder.adapter(model, run.lora),
        base=base_model.base(model, run),
        rank=run.lora.rank,
        quantize=quantize,
    )


def hf(model: Path, config: Config) -> HfEngine:
    """An engine over transformers. It has no policy until it loads a release.

    Raises UserError and ModelError when this machine, or this run, cannot use it.
    """
    run, asked = config.run, config.peer.engine
    quantize = quantization(config)
    device = _device(asked.device, config.peer.limits.gpu_memory)
    policy = _policy(model, run, device, asked.dtype, quantize)
    load = loader(quantize != "none" and run.model.training == "full")
    return HfEngine(
        policy, load_tokenization(model, run), load, run.sampling.max_tokens, run.sampling.temperature
    )


def quantization(config: Config) -> str:
    """The number format of the policy's linear layers in sampling: `none`, `int8` or `nf4`. Raises WrongUsage
    when the run does not allow it.

    The base of a qlora run is NF4 for every peer: it is part of the policy.
    """
    asked, own = config.peer.engine.quantize, "nf4" if config.run.model.training == "qlora" else "none"
    if asked in ("none", own):
        return own
    if not config.run.sampling.quantized:
        raise WrongUsage(
            f"this run does not allow sampling with {asked} weights (its run.sampling.quantized is false): "
            "set peer.engine.quantize to none"
        )
    return asked


def _policy(model: Path, run: Run, device: str, dtype: str, quantize: str) -> PreTrainedModel | PeftModel:
    """The run's model, or its base with an adapter, before a release is loaded."""
    lora = None if run.model.training == "full" else run.lora
    try:
        return load_policy(base_model.base(model, run), device, dtype, quantize=quantize, lora=lora)
    except ImportError as error:
        raise CannotHere(str(error)) from error
    except (RuntimeError, MemoryError) as error:
        if not ran_out(error):
            raise
        raise CannotHere(
            f"the model does not fit into the memory of {device}: `swarm fit {run.model.name}` shows what"
            " fits on this machine"
        ) from error


def _device(name: str, share: float) -> str:
    """The device of that name; of a GPU's memory this process takes at most that share."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        found = torch.zeros(0, device=name).device
        if found.type == "cuda" and share < 1:
            torch.cuda.set_per_process_memory_fraction(share, found)
        return str(found)
    except (RuntimeError, AssertionError) as error:
        raise CannotHere(f"device {name!r} is not here ({error}): use auto or cpu") from error
