"""Chooses the engine of a sampler or an evaluator: `auto` takes vLLM where it is installed and a GPU has
room for it.

    chosen     of this machine and this run --> choose, whose choice depends on its arguments only
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import msgspec

from peers.errors import CannotHere, WrongUsage
from peers.fit import hardware
from peers.fit.hardware import Gpu
from swarm import extras
from swarm.settings.config import Config, EngineSettings

ROOM = 1.3
"""Least GPU memory for vLLM, in times the weights in bfloat16: the weights and a useful KV cache."""


class EngineChoice(NamedTuple):
    name: str
    reason: str

    def __str__(self) -> str:
        return f"engine {self.name}: {self.reason}"


class EngineFacts(NamedTuple):
    """The facts of this machine and this run that decide the engine."""

    vllm: bool
    """vLLM can be imported."""
    gpus: tuple[Gpu, ...]
    """Whole, whatever the peer's limits are."""
    parameters: int
    """Parameters of the whole model."""
    quantize: str
    """`none`, `int8` or `nf4`: the precision of the policy's linear layers in the sampler."""


def installed() -> bool:
    return find_spec("vllm") is not None


def chosen(model: Path, config: Config) -> EngineChoice:
    """Raises as `choose`, and ModelError."""
    asked, vllm = limited(config), installed()
    gpus = hardware.machine().gpus
    parameters = 0
    if vllm and gpus and asked.name == "auto":
        from peers.fit.model_shape import examine  # imports torch

        parameters = examine(model).parameters
    return choose(asked, EngineFacts(vllm, gpus, parameters, quantization(config)))


def limited(config: Config) -> EngineSettings:
    """The engine's settings within the peer's limits: vLLM takes a share of all of a GPU's memory, and its
    caller counts by the same one."""
    asked = config.peer.engine
    return msgspec.structs.replace(asked, memory=min(asked.memory, config.peer.limits.gpu_memory))


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


def choose(settings: EngineSettings, seen: EngineFacts) -> EngineChoice:
    """The engine and the reason for it. Raises CannotHere or WrongUsage, with what to do, when the named
    engine cannot be used."""
    match settings.name:
        case "hf":
            return EngineChoice("hf", "peer.engine.name asks for it")
        case "vllm":
            return _vllm(seen)
        case "vllm-server":
            if not settings.url:
                raise WrongUsage(
                    "peer.engine.name is vllm-server: set peer.engine.url too, to http://127.0.0.1:8000 or so"
                )
            if seen.quantize != "none":
                raise WrongUsage(
                    f"a server does not quantize its weights to {seen.quantize}: set peer.engine.name to hf"
                )
            return EngineChoice("vllm-server", f"peer.engine.name asks for it, at {settings.url}")
        case "toy":
            raise WrongUsage(
                "engine 'toy' is for simulations: a language model needs auto, hf, vllm or vllm-server"
            )
    return (
        EngineChoice("vllm", why)
        if (why := _suits(settings, seen))
        else EngineChoice("hf", _instead(settings, seen))
    )


def _vllm(seen: EngineFacts) -> EngineChoice:
    if not seen.vllm:
        raise CannotHere(
            f"peer.engine.name is vllm, which is not installed here: {extras.install('vllm')} (without a GPU:"
            " `make test-vllm` shows how), or set it to auto"
        )
    if seen.quantize == "int8":
        raise WrongUsage(
            "vLLM cannot quantize to int8 while it loads: set peer.engine.quantize to nf4, or the name to hf"
        )
    if seen.quantize == "nf4" and not seen.gpus:
        raise WrongUsage(
            "vLLM quantizes on GPUs only: set peer.engine.name to hf, which does it on a CPU too"
        )
    return EngineChoice("vllm", "peer.engine.name asks for it")


def _suits(settings: EngineSettings, seen: EngineFacts) -> str:
    """Why `auto` takes vLLM; empty when it does not."""
    gpu = _gpu(settings, seen)
    if not seen.vllm or gpu is None or seen.quantize == "int8" or _lacks(settings, seen, gpu):
        return ""
    return f"vLLM is installed, and the {gpu.name} has room for it"


def _instead(settings: EngineSettings, seen: EngineFacts) -> str:
    """Why `auto` takes hf."""
    gpu = _gpu(settings, seen)
    if gpu is None:
        where = "there is no GPU" if not seen.gpus else f"peer.engine.device is {settings.device}"
        return where + (", where vLLM has to be asked for: peer.engine.name = vllm" if seen.vllm else "")
    if not seen.vllm:
        return f"vLLM is not installed; {extras.install('vllm')} samples faster on this GPU"
    if seen.quantize == "int8":
        return "vLLM cannot quantize to int8 while it loads"
    return _lacks(settings, seen, gpu)


def _lacks(settings: EngineSettings, seen: EngineFacts, gpu: Gpu) -> str:
    """A sentence that gives the GPU memory that vLLM lacks; empty when it has enough. The settings are
    `limited`."""
    claim = settings.memory * gpu.total
    need = ROOM * seen.parameters * (2.0 if seen.quantize == "none" else 0.6)
    if gpu.free < claim:
        return (
            f"vLLM would take {_gib(claim)} GB of the {gpu.name}, {_gib(gpu.free)} GB are free: lower"
            " peer.engine.memory"
        )
    if claim < need:
        return f"the model needs {_gib(need)} GB in vLLM, which may take {_gib(claim)} GB of the {gpu.name}"
    return ""


def _gpu(settings: EngineSettings, seen: EngineFacts) -> Gpu | None:
    kind, _, number = settings.device.partition(":")
    if kind not in ("auto", "cuda") or not seen.gpus:
        return None
    return seen.gpus[int(number)] if number.isdigit() and int(number) < len(seen.gpus) else seen.gpus[0]


def _gib(count: float) -> str:
    return f"{count / (1 << 30):.1f}"
