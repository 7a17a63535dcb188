"""Low-rank adapters (LoRA, arXiv 2106.09685, by peft): wrap a model, read and write releases.

W x becomes W x + (alpha / rank) B A x; only A and B are trained and released.

    a causal model + run.lora --wrap--> PeftModel
        --swarm.learn.files.weights--> a release: bf16 safetensors with peft's names
    config.json alone    --genesis--> release 0, with the values of an existing adapter
    a release            --write_folder--> what PeftModel.from_pretrained and vLLM load
    a base + a release   --merged-->  a whole model

The first adapter changes nothing (B = 0), and its A is the same on every peer: each matrix is drawn on a CPU
from the run's seed and its own name. Linear layers only: no experts of a mixture, no routers. Not handled
here: training, several adapters at once.
"""

from __future__ import annotations

import hashlib
import math
import warnings
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from swarm.learn.files import peft_folder, weights
from swarm.learn.files.release_file import ReleaseFile
from swarm.learn.models.pretrained import ModelError, config_of, first_line
from swarm.settings import config
from swarm.storage.blocks import Blocks

if TYPE_CHECKING:
    from peft import LoraConfig, PeftModel
    from transformers import PreTrainedModel

ALL = "all-linear"
"""`run.lora.targets` that names every linear layer but the head."""


def wrap(model: PreTrainedModel, lora: config.Lora, seed: int) -> PeftModel:
    """The model with the run's first adapter in its layers, which alone require gradients, in the model's own
    precision.

    `model` is changed; it may be quantized, or on the meta device. Raises ModelError for targets that it does
    not have.
    """
    # peft asks whether a layer's weight is a DTensor, but does not import the module for that itself.
    import torch.distributed.tensor
    from peft import PeftModel, get_peft_model

    linear = _linear(model)
    dtype = model.get_input_embeddings().weight.dtype
    try:
        # peft draws an adapter of its own, and calls transformers in a way that raises a FutureWarning.
        with (
            torch.random.fork_rng(devices=[]),
            warnings.catch_warnings(action="ignore", category=FutureWarning),
        ):
            settings = _settings(lora, linear if lora.targets == ALL else _named(lora))
            wrapped = get_peft_model(model, settings, autocast_adapter_dtype=False)
        _check_targets(wrapped, lora)
    except ValueError as error:
        said = first_line(error).rstrip(".")
        there = ", ".join(sorted({name.rpartition(".")[2] for name in linear}))
        raise ModelError(
            f"run.lora.targets = {lora.targets!r} does not fit this model: {said}; its linear"
            f" layers are {there or 'none that can have an adapter'}"
        ) from error
    assert isinstance(wrapped, PeftModel)
    for name, tensor in weights.state(wrapped).items():
        tensor.data = tensor.data.to(dtype)
        if not tensor.is_meta:
            tensor.data.copy_(initial_value(name, tuple(tensor.shape), seed))
    return wrapped.eval()


def genesis(folder: Path, lora: config.Lora, seed: int, adapter: Path | None = None) -> bytes:
    """Release 0 of a run on the model in `folder`, from its config.json alone; with the values of an
    `adapter` in a folder of peft's. Raises ModelError as `wrap` and `config_of` do, and for an adapter of
    another model."""
    from transformers import AutoModelForCausalLM

    with torch.device("meta"):
        empty = wrap(AutoModelForCausalLM.from_config(config_of(folder)), lora, seed)
    shapes = {name: tuple(tensor.shape) for name, tensor in weights.state(empty).items()}
    if adapter is None:
        return weights.to_bytes({name: initial_value(name, shape, seed) for name, shape in shapes.items()})
    data = weights.to_bytes(peft_folder.values(adapter, shapes))
    try:
        weights.from_bytes(data)
    except ValueError as error:
        raise ModelError(f"no run begins with the adapter in {adapter}: {error}") from error
    return data


def initial_value(name: str, shape: tuple[int, ...], seed: int) -> Tensor:
    """A tensor of `shape` of the first adapter, float32: B is 0, A is uniform within 1/sqrt(columns), which
    is peft's kaiming_uniform with a = sqrt(5)."""
    if ".lora_B." in name:
        return torch.zeros(shape)
    key = int.from_bytes(hashlib.sha256(f"{seed}/{name}".encode()).digest()[:8], "big")
    edge = 1 / math.sqrt(shape[1])
    return torch.empty(shape, device="cpu").uniform_(
        -edge, edge, generator=torch.Generator("cpu").manual_seed(key)
    )


def write_folder(target: Path, blocks: Blocks, lora: config.Lora, base: str) -> None:
    """Write a release to `target` as peft's own files; `base` is their name for the model below: a folder or
    a Hub id.

    The layers are named one by one ("all-linear" is known to peft alone). Raises ValueError for bytes that
    are no adapter.
    """
    names = ReleaseFile(blocks).places
    if not names or not all(".lora_A." in name or ".lora_B." in name for name in names):
        raise ValueError(
            "these weights are not an adapter: they were released by a run that trains a whole model"
        )
    layers = sorted({name.split(".lora_")[0].rpartition(".")[2] for name in names})
    target.mkdir(parents=True, exist_ok=True)
    settings = _settings(lora, layers)
    settings.base_model_name_or_path, settings.inference_mode = base, True
    settings.save_pretrained(str(target))
    blocks.put(target / "adapter_model.safetensors")


def merged(base: PreTrainedModel, lora: config.Lora, data: bytes) -> PreTrainedModel:
    """`base` plus an adapter's release: a model of whole weights, in the dtype of `base`, which is changed
    and must not be quantized. A head that is the embedding becomes one of its own where it has an adapter:
    the embedding has none.

    With `base` in float32 the sum is rounded only once, by who writes it. Raises ValueError when `data` is
    not an adapter of it.
    """
    if getattr(base, "is_quantized", False):
        raise ValueError(
            "an adapter cannot be added to quantized weights without loss: load the base as it is"
        )
    wrapped = wrap(base, lora, seed=0)
    weights.load_into(wrapped, Blocks.of(data))
    _untie(base)
    whole: PreTrainedModel = wrapped.merge_and_unload()
    return whole


def _untie(model: PreTrainedModel) -> None:
    """Give a head with an adapter weights of its own where it has those of the embedding."""
    head, embedding = model.get_output_embeddings(), model.get_input_embeddings()
    below = getattr(head, "base_layer", None)
    if below is None or below.weight is not embedding.weight:
        return
    below.weight = nn.Parameter(below.weight.detach().clone(), requires_grad=False)
    for settings in (model.config, model.config.get_text_config()):
        settings.tie_word_embeddings = False


def _settings(lora: config.Lora, targets: list[str]) -> LoraConfig:
    from peft import LoraConfig

    return LoraConfig(r=lora.rank, lora_alpha=lora.alpha, target_modules=targets, task_type="CAUSAL_LM")  # type: ignore[arg-type]


def _named(lora: config.Lora) -> list[str]:
    return [name.strip() for name in lora.targets.split(",") if name.strip()]


def _linear(model: PreTrainedModel) -> list[str]:
    """Full names of the linear layers but the head; without those whose names peft assumes to be tensors of
    all experts together (`gate_proj` in a Qwen3 MoE, also of its dense layers)."""
    head = model.get_output_embeddings()
    found = [name for name, module in model.named_modules() if module is not head and _is_linear(module)]
    fused = {leaf for leaf in {name.rpartition(".")[2] for name in found} if _is_of_experts(model, leaf)}
    return [name for name in found if name.rpartition(".")[2] not in fused]


def _is_linear(module: nn.Module) -> bool:
    """Whether a layer gives a product alone: the router of Llama 4, a subclass of Linear, gives two."""
    from transformers.pytorch_utils import Conv1D

    if not type(module).__module__.startswith("transformers.models."):
        return isinstance(module, nn.Linear | Conv1D)
    if not isinstance(module, nn.Linear):
        return False
    with torch.no_grad():
        return isinstance(module(module.weight.new_zeros(1, module.in_features)), Tensor)


def _is_of_experts(model: PreTrainedModel, name: str) -> bool:
    from peft import LoraConfig

    try:
        from peft.utils.transformers_weight_conversion import convert_peft_config_for_transformers
    except ImportError:  # a peft that takes no name for one of experts
        return False
    settings = LoraConfig(target_modules=[name])
    try:
        convert_peft_config_for_transformers(settings, model, None)
    except ValueError:  # it wants the names of all that is fused with it
        return True
    return name not in (settings.target_modules or ())


def _check_targets(wrapped: nn.Module, lora: config.Lora) -> None:
    """Raise ValueError for a target that no layer has; peft is content when one of several names is found."""
    from peft.tuners.lora.layer import ParamWrapper

    trained = [name for name, parameter in wrapped.named_parameters() if parameter.requires_grad]
    strange = [name for name in trained if ".lora_A." not in name and ".lora_B." not in name]
    strange += [name for name, module in wrapped.named_modules() if isinstance(module, ParamWrapper)]
    if strange:
        raise ValueError(f"it names a layer that is not linear, {strange[0].split('.lora_')[0]}")
    found = {name.split(".lora_")[0].rpartition(".")[2] for name in trained}
    if lora.targets != ALL and (
        missing := [name for name in _named(lora) if name.rpartition(".")[2] not in found]
    ):
        raise ValueError(f"it names {', '.join(missing)}, which this model does not have")
