"""Loads a policy from a model folder: all weights, or an adapter on a base, which may be quantized.

    full    all weights are trained; a joiner has the folder without them (they come with the newest release)
    lora    the folder's weights are the base and stay as they are; an adapter on it is trained
    qlora   the same on a base in 4 bits (NF4): that is the policy, wherever it is sampled

Code in a folder is never run, pickled weights are never read. Not handled here: the rest of a folder
(swarm.learn.models.pretrained), several devices.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError, safe_open
from transformers import AutoModelForCausalLM, initialization
from transformers.utils import logging as transformers_logging

from swarm.learn.files import weights
from swarm.learn.files.release_file import ReleaseFile, header, values
from swarm.learn.learners.microbatch import ran_out
from swarm.learn.models import adapters, quantized
from swarm.learn.models.pretrained import ModelError, check_size, config_of, first_line, reading, weight_map
from swarm.settings.config import Lora
from swarm.storage.blocks import Blocks
from swarm.storage.durable import sync
from swarm.storage.image import MakeDraft

transformers_logging.disable_progress_bar()  # a bar per load would run through the swarm's own live view

if TYPE_CHECKING:
    from transformers import PreTrainedModel


PLACEHOLDER = 0.01
"""Value of weights before the first release; not 0, since `chunked_logprobs.linear_head` tests with the
weights whether the head is a plain product."""

FINITE = "take a model whose values bfloat16 can hold"
"""What to do about a value that is infinite or no number, in its file or once it is rounded."""


def load_policy(
    folder: Path,
    device: str = "cpu",
    dtype: str = "float32",
    data: bytes | None = None,
    quantize: str = "none",
    lora: Lora | None = None,
    size: int | None = None,
) -> Any:
    """The model of `folder` in eval mode, without dropout: a PreTrainedModel, with `lora` a PeftModel around
    it.

    `dtype` is of the weights, or of the computation around quantized ones; `auto` is bfloat16 on a GPU and
    float32 on a CPU. `data` is a release, loaded where given; else a full model has the folder's weights (or,
    where it has none, arbitrary weights until a release is loaded), and an adapter changes nothing yet.
    `quantize` is `none`, `int8` or `nf4`.

    Raises ModelError when the folder is not usable, ValueError when `data` is of another model, ImportError
    without bitsandbytes. `size`: bytes of a release, where they are known without one: no config makes the
    model larger than its weights are.
    """
    kind = dtype_of(dtype, device)
    files = [*folder.glob("*.safetensors")]
    there = bool(files)
    if there:
        size = sum(file.stat().st_size for file in files)
    elif data is not None:
        size = len(data)
    if size is not None:
        config_of(folder)
        check_size(folder, size)
    if lora is not None and not there:
        raise ModelError(f"{no_weights(folder)}; an adapter is nothing without its base")
    model = _filled(folder, device, kind, quantize) if there else _empty(folder, device, kind, quantize)
    if lora is not None:
        model = adapters.wrap(model, lora, seed=0)
    if data is not None:
        loader(quantize != "none" and lora is None)(model, Blocks.of(data))
    return model.eval()


def loader(quantized_policy: bool) -> weights.Loader:
    """Loads releases into a model, of which the policy itself is quantized or not."""
    return weights.Loader(quantized.put if quantized_policy else weights.copy)


def dtype_of(name: str, device: str) -> torch.dtype:
    """The dtype named `float32`, `bfloat16`, `float16` or `auto` (bfloat16 on a GPU, else float32)."""
    if name == "auto":
        return torch.float32 if torch.device(device).type == "cpu" else torch.bfloat16
    return {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}[name]


def write_base(folder: Path, target: Path) -> None:
    """Write the weights in `folder` to `target` as one file in bfloat16: the base of a run's adapters. One
    tensor is in memory at a time.

    Raises ModelError when there are none, a file is damaged or missing or a value is not finite, OSError when
    the disk refuses.
    """
    _, parts = _as_released(folder)
    target.parent.mkdir(parents=True, exist_ok=True)
    draft = target.with_name(target.name + ".new")
    with open(draft, "wb") as out:
        out.writelines(parts)
    sync(draft)
    draft.rename(target)
    sync(target.parent)


def write_release(folder: Path, draft: MakeDraft) -> Blocks:
    """The weights in `folder` as a release, one tensor in memory at a time: the bytes that the model has when
    it is loaded from there, where its files name its tensors as it does.

    Raises ModelError when there are none, a file is damaged or missing or a value is not finite.
    """
    size, parts = _as_released(folder)
    out = draft(size)
    for part in parts:
        out.write(part)
    return out.done()


def first_release(folder: Path) -> bytes:
    """Version 0 of a run that trains all weights in `folder`, as bytes.

    Raises ModelError as `load_policy`, for values that are not finite, and for weights that no model has
    which is made from the config alone, as a joiner makes it.
    """
    model = load_policy(folder, dtype="bfloat16")
    head, embedding = model.get_output_embeddings(), model.get_input_embeddings()
    tied = getattr(model.config.get_text_config(), "tie_word_embeddings", False)
    if tied and head is not None and head.weight is not embedding.weight:
        raise ModelError(
            f"{folder} has a head of its own, and its config says that this is the embedding: set"
            " tie_word_embeddings to false in config.json, or save the model without its head"
        )
    data = weights.release_bytes(model)
    release = ReleaseFile(Blocks.of(data))
    try:
        release.check(release.places)
    except ValueError as error:
        raise ModelError(f"no run begins with {folder}: {error}; {FINITE}") from error
    return data


def _as_released(folder: Path) -> tuple[int, Iterator[bytes | memoryview]]:
    """How many bytes the weights in `folder` have as one file in bfloat16, and that file in pieces. Raises
    ModelError."""
    places = _places(folder)
    shapes: dict[str, tuple[int, ...]] = {}
    for name in sorted(places):
        with reading(places[name]), safe_open(places[name], "pt") as file:
            tensor = file.get_slice(name)
        shapes[name] = tuple(tensor.get_shape())
        if tensor.get_dtype() not in ("F64", "F32", "F16", "BF16"):
            raise ModelError(
                f"{name} in {folder} is {tensor.get_dtype()}: take the model in bfloat16 or float32"
            )
    first = header(shapes)
    return len(first) + sum(2 * math.prod(shape) for shape in shapes.values()), _parts(places, first)


def _parts(places: Mapping[str, Path], first: bytes) -> Iterator[bytes | memoryview]:
    yield first
    for name in sorted(places):
        with safe_open(places[name], "pt") as file:
            tensor = file.get_tensor(name)
        if not bool(tensor.to(torch.bfloat16).isfinite().all()):
            raise ModelError(f"{name} in {places[name]} holds values that are not finite: {FINITE}")
        yield from values(tensor)


def _places(folder: Path) -> dict[str, Path]:
    """Tensor -> the file that holds it: those that `from_pretrained` reads, and no other copies beside
    them."""
    if (several := weight_map(folder)) is not None:
        return several
    if not (folder / "model.safetensors").exists():
        raise ModelError(no_weights(folder))
    with reading(folder / "model.safetensors"), safe_open(folder / "model.safetensors", "pt") as file:
        return dict.fromkeys(file.keys(), folder / "model.safetensors")


def no_weights(folder: Path) -> str:
    """The error message for a folder without weights."""
    pickled = any(folder.glob("pytorch_model*.bin"))
    why = "only pickled weights, which are never read" if pickled else "no *.safetensors"
    return f"{folder} has {why}: save the model with save_pretrained first"


def _filled(folder: Path, device: str, dtype: torch.dtype, quantize: str) -> PreTrainedModel:
    config_of(folder)
    own: dict[str, Any] = {"dtype": dtype, "trust_remote_code": False, "use_safetensors": True}
    own |= {"output_loading_info": True, "ignore_mismatched_sizes": True}  # they are refused below
    if quantize != "none":
        own |= {"quantization_config": quantized.settings(quantize, dtype), "device_map": {"": device}}
    try:
        model, loaded = AutoModelForCausalLM.from_pretrained(folder, **own)
    except (ValueError, OSError, RuntimeError, KeyError, SafetensorError) as error:
        if ran_out(error):
            raise
        raise ModelError(f"the model in {folder} cannot be loaded: {first_line(error)}") from error
    _check_complete(folder, loaded)
    if quantize == "none":
        return model.to(device)
    quantized.keep_one_forward(model)
    return model


def _check_complete(folder: Path, loaded: Mapping[str, Any]) -> None:
    """Raise ModelError where transformers initialised tensors of the model at random; `loaded` is its report
    about the files. Tied weights, which are in them once, do not count as missing."""
    if missing := sorted(loaded["missing_keys"]):
        more = ", ..." if len(missing) > 1 else ""
        raise ModelError(
            f"{folder} lacks {len(missing)} of the tensors that its config asks for ({missing[0]}{more}):"
            " copy the model again"
        )
    for name, found, asked in sorted(loaded["mismatched_keys"]):
        raise ModelError(
            f"{name} in {folder} has shape {list(found)}, and its config asks for {list(asked)}: copy the"
            " model again, with the config.json that belongs to it"
        )


def _empty(folder: Path, device: str, dtype: torch.dtype, quantize: str) -> PreTrainedModel:
    config = config_of(folder)
    with initialization.no_init_weights():  # a random 8B model takes a minute to draw
        model = AutoModelForCausalLM.from_config(config, dtype=dtype, trust_remote_code=False)
    model.tie_weights()
    if quantize != "none":
        quantized.replace_linears(model, quantize, dtype)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(PLACEHOLDER)
    return model.to(device)
