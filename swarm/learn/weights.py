"""A policy as bytes: bf16 safetensors, the same bytes for the same weights on every peer.

Names are sorted, tied weights are written once (under their first name), every float becomes bfloat16. Reading trusts nothing:
the header is checked by safetensors, then names, types and shapes against the module that is to hold them. Not handled here:
patches between versions, compression.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor, nn

from swarm.types import Digest


def to_bytes(state: Mapping[str, Tensor]) -> bytes:
    """Named tensors -> bf16 safetensors."""
    unique = {name: _portable(state[name]) for name in sorted(_first_names(state))}
    return save(unique, metadata={"format": "pt"})  # from_pretrained refuses a file without this entry


def from_bytes(data: bytes) -> dict[str, Tensor]:
    """bf16 safetensors -> named tensors, finite. Raises ValueError with the reason."""
    try:
        tensors = load(data)
    except (SafetensorError, ValueError, KeyError, RuntimeError) as error:
        raise ValueError(f"these weights cannot be read: {error}") from error
    for name, tensor in tensors.items():
        if tensor.dtype is not torch.bfloat16:
            raise ValueError(f"these weights cannot be used: {name} is {tensor.dtype}, a policy travels as bfloat16")
        if not bool(torch.isfinite(tensor).all()):
            raise ValueError(f"these weights cannot be used: {name} holds values that are not finite")
    return tensors


def digest(data: bytes) -> Digest:
    return Digest(hashlib.sha256(data).hexdigest())


@torch.no_grad()
def load_into(module: nn.Module, data: bytes) -> None:
    """Set the module's weights to those in `data`. Raises ValueError (nothing changed) unless names and shapes are its own."""
    tensors = from_bytes(data)
    state = module.state_dict()
    mine = {name: state[name] for name in _first_names(state)}
    if mine.keys() != tensors.keys():
        strange, missing = sorted(tensors.keys() - mine.keys()), sorted(mine.keys() - tensors.keys())
        raise ValueError(f"these weights are of another model: unknown {strange[:3]}, missing {missing[:3]}")
    for name, tensor in tensors.items():
        if tensor.shape != mine[name].shape:
            raise ValueError(f"these weights are of another model: {name} is {[*tensor.shape]}, here {[*mine[name].shape]}")
    for name, tensor in tensors.items():
        mine[name].copy_(tensor)


def _first_names(state: Mapping[str, Tensor]) -> list[str]:
    """Names without those that share their memory with an earlier one (tied weights)."""
    seen: dict[tuple[int, tuple[int, ...]], str] = {}
    for name in sorted(state):
        seen.setdefault((state[name].data_ptr(), tuple(state[name].shape)), name)
    return list(seen.values())


def _portable(tensor: Tensor) -> Tensor:
    return tensor.detach().to("cpu", torch.bfloat16).contiguous().clone()
