"""Builds engines, learners and the tokenization from a run's settings and model folder.

This is the one module that joins swarm.learn and swarm.sample, which do not import each other. It imports
torch and transformers; task_source.py and engine_process.py do not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from peers.build import run_folder
from peers.build.model import base_model, engine_choice, vllm_folder
from peers.errors import CannotHere, WrongUsage
from peers.fit import fits, hardware
from swarm.learn.files import weights
from swarm.learn.fsdp.driver import RankLost
from swarm.learn.fsdp.learner import ShardedLearner
from swarm.learn.learners.base_learner import BaseLearner
from swarm.learn.learners.microbatch import ran_out
from swarm.learn.learners.site_learner import of_mode
from swarm.learn.models import adapters, tokenization
from swarm.learn.models.model import load_policy, loader
from swarm.learn.models.policy import LanguageModel
from swarm.learn.models.pretrained import check_size, config_of
from swarm.learn.models.tokenization import Tokenization
from swarm.learn.reference import has_reference
from swarm.learn.replay import ModelReplay
from swarm.processes.allocation import keep_freed
from swarm.sample.base import Engine, EngineError
from swarm.sample.hf import HfEngine
from swarm.sample.server import ServerEngine
from swarm.sample.vllm import Recipe, VllmEngine
from swarm.settings.config import Config, Run
from swarm.settings.loading import SHARDED_SITES

if TYPE_CHECKING:
    from peft import PeftModel
    from transformers import PreTrainedModel


def size(model: Path, run: Run) -> int:
    """Number of trained parameters of the model in this folder, without allocating them. Raises
    ModelError."""
    from transformers import AutoModelForCausalLM

    with torch.device("meta"):
        empty = AutoModelForCausalLM.from_config(config_of(model))
        trained = empty if run.model.training == "full" else adapters.wrap(empty, run.lora, run.seed)
    return sum(parameter.numel() for parameter in trained.parameters() if parameter.requires_grad)


def learner(model: Path, config: Config) -> tuple[BaseLearner, Tokenization]:
    """A learner, without a policy until it takes a release, and the run's tokenization.

    Raises UserError and ModelError when this machine cannot run it.
    """
    run, settings = config.run, config.peer.learner
    tokens = tokenization.of_run(model, run)
    share = config.peer.limits.gpu_memory
    if (gpus := learner_gpus(model, config)) > 1:
        _check_size(model, run)
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
    policy = _trained_policy(model, config)
    try:
        kind = of_mode(run)
        trained = LanguageModel(policy, tokens, start=_start(model, config, tokens))
        return kind(trained, run, settings, ram=lambda: hardware.memory()[1]), tokens
    except ValueError as error:
        raise CannotHere(str(error)) from error


def replay(model: Path, config: Config) -> ModelReplay:
    """The policy that a learner audits with: a second copy, with the settings of its training.

    Raises UserError and ModelError when this machine cannot hold it.
    """
    tokens, sampling = tokenization.of_run(model, config.run), config.run.sampling
    policy = LanguageModel(_trained_policy(model, config), tokens)
    return ModelReplay(policy, loader(False), tokens.ends, sampling.max_tokens, sampling.temperature)


def learner_gpus(model: Path, config: Config) -> int:
    """Number of GPUs that a learner's model is split over; 1 also on a machine without any. Raises CannotHere
    when there are fewer than `peer.learner.gpus`.

    When that setting is 0: one if the model fits on it by `swarm fit`'s estimate, else all; a run that cannot
    be split (qlora, another optimizer than AdamW, sites, a KL term against version 0) takes one.
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
    if (
        run.model.training == "qlora"
        or run.optimizer.name != "adamw"
        or run.averaging.mode == "sites"
        or has_reference(run)
    ):
        return 1
    machine = hardware.lent(hardware.machine(), config.peer.limits)
    wanted = fits.row(fits.Case.of(model, config, machine), fits.LEARNER, run.model.training).gpus
    return min(there, max(1, wanted))


def hosted(name: str, model: Path, config: Config, folder: Path, alive: Callable[[int], None]) -> Engine:
    """The engine `hf` or `vllm` for a process of its own (engine_worker.py). It calls `alive` at every step,
    with how many of the call's completions are done, has `folder` for its files, and no policy until it loads
    a release.

    Raises UserError and ModelError when this machine, or this run, cannot use it.
    """
    if name == "vllm":
        return VllmEngine(_recipe(model, config), folder, alive)
    engine = hf(model, config, alive)
    keep_freed()  # not what loading the model took, which may be as much as the model
    return engine


def server(model: Path, config: Config) -> ServerEngine:
    """The engine `vllm-server`, likewise in this process."""
    recipe, run = _recipe(model, config), config.run
    small = run.model.training == "full" and vllm_folder.size(model) <= vllm_folder.REFERENCE
    try:
        engine = ServerEngine(recipe, run.model.name, vllm_folder.score if small else None)
        engine.check()
    except ValueError as error:
        raise WrongUsage(str(error)) from error
    except EngineError as error:
        raise CannotHere(str(error)) from error
    return engine


def _recipe(model: Path, config: Config) -> Recipe:
    """The Recipe of the engines `vllm` and `vllm-server`."""
    run, tokens = config.run, tokenization.of_run(model, config.run)
    _check_size(model, run)
    quantize, settings = engine_choice.quantization(config) != "none", engine_choice.limited(config)
    whole = run.model.training == "full"
    return Recipe(
        settings,
        run.sampling,
        tokens,
        tokens.vocabulary,
        vllm_folder.whole(model) if whole else vllm_folder.adapter(model, run.lora),
        base=None if whole else base_model.base(model, run),
        rank=0 if whole else run.lora.rank,
        quantize=quantize,
    )


def hf(model: Path, config: Config, alive: Callable[[int], None] = lambda done: None) -> HfEngine:
    """An engine over transformers, which calls `alive` at every step, as `hosted` says. It has no policy
    until it loads a release.

    Raises UserError and ModelError when this machine, or this run, cannot use it.
    """
    run, asked = config.run, config.peer.engine
    quantize = engine_choice.quantization(config)
    device = _device(asked.device, config.peer.limits.gpu_memory)
    policy = _policy(model, run, device, asked.dtype, quantize)
    load = loader(quantize != "none" and run.model.training == "full")
    tokens, sampling = tokenization.of_run(model, run), run.sampling
    at_once = asked.tasks if device == "cpu" else None  # a full GPU says so, and gets half of them
    try:
        return HfEngine(
            policy,
            tokens,
            load,
            sampling.max_tokens,
            sampling.temperature,
            sampling.heads,
            alive=alive,
            tasks=at_once,
        )
    except ValueError as error:
        raise CannotHere(str(error)) from error


def _trained_policy(model: Path, config: Config) -> PreTrainedModel | PeftModel:
    """The policy as `[peer.learner]` has it."""
    run, settings = config.run, config.peer.learner
    quantize = "nf4" if run.model.training == "qlora" else "none"
    device = _device(settings.device, config.peer.limits.gpu_memory)
    return _policy(model, run, device, settings.dtype, quantize)


def _start(
    model: Path, config: Config, tokens: Tokenization
) -> LanguageModel | Mapping[str, torch.Tensor] | None:
    """Version 0 where a KL term is against it, and it is not the model below the adapter: in the dtype of the
    policy where all weights are trained, the first values of an existing adapter."""
    run, settings = config.run, config.peer.learner
    if not has_reference(run) or (run.model.training != "full" and not run.model.adapter):
        return None
    if run.model.adapter:
        file = model / run_folder.START
        if not file.exists():
            raise CannotHere(f"{file}, which the run's KL term is against, is not here: leave and join again")
        return weights.from_bytes(file.read_bytes())
    device = _device(settings.device, config.peer.limits.gpu_memory)
    with _room_on(device, run):
        policy = load_policy(base_model.start(model, run), device, settings.dtype).requires_grad_(False)
    for parameter in policy.parameters():
        parameter.data = parameter.bfloat16().to(parameter.dtype)  # as in a release
    return LanguageModel(policy, tokens)


def _policy(model: Path, run: Run, device: str, dtype: str, quantize: str) -> PreTrainedModel | PeftModel:
    """The run's model, or its base with an adapter, before a release is loaded."""
    lora = None if run.model.training == "full" else run.lora
    with _room_on(device, run):
        size = _release_size(model) if lora is None else None
        return load_policy(
            base_model.base(model, run), device, dtype, quantize=quantize, lora=lora, size=size
        )


@contextmanager
def _room_on(device: str, run: Run) -> Iterator[None]:
    """Raises CannotHere where the body lacks memory or a package."""
    try:
        yield
    except ImportError as error:
        raise CannotHere(str(error)) from error
    except (RuntimeError, MemoryError) as error:
        if not ran_out(error):
            raise
        raise CannotHere(
            f"the model does not fit into the memory of {device}: `swarm fit {run.model.name}` shows what"
            " fits on this machine"
        ) from error


def _release_size(model: Path) -> int | None:
    """Bytes of a release of the run whose folder holds this model; None elsewhere."""
    run = run_folder.read(model.parent)
    return None if run is None else run.spec.release_size


def _check_size(model: Path, run: Run) -> None:
    """Raise ModelError where the model's config asks for more than its weights have, as load_policy does."""
    if run.model.training == "full" and (size := _release_size(model)) is not None:
        check_size(model, size)


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
