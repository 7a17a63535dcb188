"""Weights of a policy as the bytes of a release: bf16 safetensors, the same bytes on every peer.

Names are sorted, tied weights are written once (under their last name, which is the embedding's and not the
head's, as in the files that transformers and vLLM read), every float becomes bfloat16. The release of a
module with an adapter (peft's) is the adapter alone, under the names that peft uses in files. Everything that
is read is checked: the header by safetensors, then names, types and shapes against the module.

    module --release_bytes--> bytes --from_bytes--> name -> tensor            bytes --load_into--> module

A learner's float32 master holds 16 bits more than a release, and at a real learning rate the steps of many
versions change only these. So a master whose bf16 rounding is the released value keeps its own value
(`follow`); otherwise every release that a learner loads would undo its training. Not handled here: patches
between versions, compression.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor, nn

ADAPTER = "default"
"""peft's name for an adapter that nobody named; part of its parameters' names in a module, not in a file."""

PIECE = 1 << 24
"""Values that `follow` compares at a time: their intermediate results take about 80 MB."""


def release_bytes(module: nn.Module) -> bytes:
    """The module's release: bf16 safetensors of all its weights, or of its adapter alone."""
    return to_bytes(state(module))


def state(module: nn.Module) -> dict[str, Tensor]:
    """Name -> tensor of the release of this module: all weights, or its adapter's alone. These are the
    module's own tensors, in their shapes and dtypes."""
    if not hasattr(module, "peft_config"):
        return module.state_dict()
    return {
        name.replace(f".{ADAPTER}.", "."): value
        for name, value in module.named_parameters()
        if f".{ADAPTER}." in name
    }


def to_bytes(state: Mapping[str, Tensor]) -> bytes:
    """The bytes of a release: bf16 safetensors, names sorted, tied tensors once. `state`: name -> tensor of
    any shape and float dtype."""
    unique = {name: _portable(state[name]) for name in sorted(own_names(state))}
    return save(unique, metadata={"format": "pt"})  # from_pretrained refuses a file without this entry


def from_bytes(data: bytes) -> dict[str, Tensor]:
    """Name -> bfloat16 tensor of a release, all values finite. Raises ValueError with the reason."""
    try:
        tensors = load(data)
    except (SafetensorError, ValueError, KeyError, RuntimeError) as error:
        raise ValueError(f"these weights cannot be read: {error}") from error
    for name, tensor in tensors.items():
        if tensor.dtype is not torch.bfloat16:
            raise ValueError(
                f"these weights cannot be used: {name} is {tensor.dtype}, a policy travels as bfloat16"
            )
        if not bool(torch.isfinite(tensor).all()):
            raise ValueError(f"these weights cannot be used: {name} holds values that are not finite")
    return tensors


@torch.no_grad()
def load_into(module: nn.Module, data: bytes, masters: bool = False) -> None:
    """Set the module's weights, or its adapter's, to those of a release; with `masters`, trained weights
    `follow` it.

    Raises ValueError (nothing changed) unless names and shapes are its own.
    """
    tensors = from_bytes(data)
    mine = state(module)
    check(tensors, {name: [*mine[name].shape] for name in own_names(mine)})
    trained = (
        {parameter.data_ptr() for parameter in module.parameters() if parameter.requires_grad}
        if masters
        else set()
    )
    for name, tensor in tensors.items():
        if mine[name].data_ptr() in trained:
            follow(mine[name], tensor)
        else:
            mine[name].copy_(tensor)


@torch.no_grad()
def follow(master: Tensor, released: Tensor) -> None:
    """Set `master` (any shape, float32) to `released` (the same shape), but keep values whose bf16 rounding
    already has the released bits."""
    master, released = torch.atleast_1d(master.detach(), released.detach())
    rows = max(1, PIECE * len(master) // max(1, master.numel()))
    for mine, value in zip(master.split(rows), released.split(rows), strict=True):
        here = value.to(mine.device, torch.bfloat16)
        # Compared as bits: 0 and -0 are equal numbers, but different releases.
        agrees = mine.to(torch.bfloat16).view(torch.int16) == here.view(torch.int16)
        torch.where(agrees, mine, here.to(mine.dtype), out=mine)


def check(tensors: Mapping[str, Tensor], shapes: Mapping[str, list[int]]) -> None:
    """Raise ValueError unless the tensors have these names and shapes."""
    if shapes.keys() != tensors.keys():
        strange, missing = sorted(tensors.keys() - shapes.keys()), sorted(shapes.keys() - tensors.keys())
        raise ValueError(f"these weights are of another model: unknown {strange[:3]}, missing {missing[:3]}")
    for name, tensor in tensors.items():
        if [*tensor.shape] != shapes[name]:
            raise ValueError(
                f"these weights are of another model: {name} is {[*tensor.shape]}, here {shapes[name]}"
            )


def own_names(state: Mapping[str, Tensor]) -> list[str]:
    """Sorted names, without those that share their memory with a later one (tied weights)."""
    seen: dict[tuple[int, tuple[int, ...]], str] = {}
    for name in sorted(state, reverse=True):
        seen.setdefault((state[name].data_ptr(), tuple(state[name].shape)), name)
    return list(seen.values())


def _portable(tensor: Tensor) -> Tensor:
    return tensor.detach().to("cpu", torch.bfloat16).contiguous().clone()
