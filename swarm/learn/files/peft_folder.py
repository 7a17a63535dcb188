"""An existing adapter as the start of a run (`run.model.adapter`): a folder that peft wrote.

    adapter_config.json + names in adapter_model.safetensors --settings_of--> run.lora
    adapter_model.safetensors --values--> tensors of version 0 (swarm.learn.models.adapters.genesis)

Only plain LoRA: what else peft can write (other scales, other ranks by layer, trained layers beside) is
refused, since a release holds A and B of one rank alone. Not handled here: how the folder is found.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from swarm.learn.models.pretrained import ModelError, reading
from swarm.settings.config import Lora

if TYPE_CHECKING:
    from torch import Tensor

CONFIG, VALUES = "adapter_config.json", "adapter_model.safetensors"
"""Files of a peft folder."""

WITHOUT_EFFECT = {
    *("base_model_name_or_path", "revision", "inference_mode", "task_type", "peft_version", "auto_mapping"),
    *("lora_dropout", "fan_in_fan_out", "runtime_config", "exclude_modules", "target_modules"),
    *("loftq_config", "corda_config", "eva_config", "lora_ga_config"),
}
"""Settings of peft that do not change the product of a trained adapter; the names of tensors tell its
layers."""

BESIDE_THE_BASE = (True, False, "gaussian", "orthogonal", "eva")
"""`init_lora_weights` that leave the base as it is: others subtract the first adapter from it."""


def settings_of(folder: Path) -> Lora:
    """Rank, alpha and targets of the adapter in this folder. Raises ModelError where it has none, or one of
    another kind."""
    config = _config(folder)
    names = {name.split(".lora_")[0].rpartition(".")[2] for name in _shapes(folder)}
    try:
        found = {"rank": config["r"], "alpha": config["lora_alpha"], "targets": ",".join(sorted(names))}
        return msgspec.convert(found, Lora)
    except (KeyError, msgspec.ValidationError) as error:
        raise ModelError(f"{folder / CONFIG} is not LoRA's: {error}") from error


def values(folder: Path, shapes: dict[str, tuple[int, ...]]) -> dict[str, Tensor]:
    """Name -> tensor of the adapter, as it is in the file. `shapes`: those of a release of the run. Raises
    ModelError for an adapter of another model."""
    from safetensors.torch import load_file

    if (found := _shapes(folder)) != shapes:
        strange = min(found.items() ^ shapes.items())[0]
        raise ModelError(
            f"the adapter in {folder} is not of this model: {strange} is {found.get(strange, 'not there')} in"
            f" it, and {shapes.get(strange, 'not there')} here; name the model that it was trained on"
        )
    return load_file(folder / VALUES)


def _config(folder: Path) -> dict[str, Any]:
    from peft import LoraConfig

    path = folder / CONFIG
    try:
        told = json.loads(path.read_text())
    except FileNotFoundError as error:
        raise ModelError(
            f"{folder} has no {CONFIG}: name a folder that peft's save_pretrained wrote"
        ) from error
    except (ValueError, RecursionError) as error:
        raise ModelError(f"{path} cannot be read ({error}): copy the adapter again") from error
    if not isinstance(told, dict) or told.get("peft_type") != "LORA":
        raise ModelError(f"{path} is not of a LoRA adapter, and no other kind is trained here")
    plain = LoraConfig()
    for name, value in told.items():
        if name in WITHOUT_EFFECT or name in ("r", "lora_alpha", "peft_type"):
            continue
        usual = BESIDE_THE_BASE if name == "init_lora_weights" else (getattr(plain, name, None),)
        if value and value not in usual:
            raise ModelError(
                f"{path} has {name} = {value!r}: only plain LoRA goes on here; merge the adapter into its"
                " model, and train that"
            )
    return told


def _shapes(folder: Path) -> dict[str, tuple[int, ...]]:
    from safetensors import safe_open

    with reading(folder / VALUES), safe_open(folder / VALUES, "pt") as file:
        found = {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118 (no mapping)
    if strange := [name for name in found if ".lora_A." not in name and ".lora_B." not in name]:
        raise ModelError(
            f"{folder / VALUES} holds {strange[0]}, which is no part of a plain adapter: merge the adapter"
            " into its model, and train that"
        )
    return found
