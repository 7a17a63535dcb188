"""Checkpoints: a learner's whole state (fp32 master weights, moments, a few facts) as bytes and as a file.

    tensors + facts --pack--> safetensors bytes --write--> checkpoint.safetensors, whole or absent
                                                --swarm.net.blobs--> another learner

One file, because two renames would not be atomic together. Nothing is unpickled.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, deserialize
from safetensors.torch import load, save
from torch import Tensor

from swarm.durable import write_durably

NAME = "checkpoint.safetensors"
_FACTS = "facts"


def pack(tensors: Mapping[str, Tensor], facts: Mapping[str, object]) -> bytes:
    """Tensors, and facts (plain JSON) as metadata, to safetensors bytes."""
    plain = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    return save(plain, {_FACTS: json.dumps(facts)})


def unpack(data: bytes) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Inverse of `pack`: tensors on the CPU, and facts. Raises ValueError when the bytes are not such a
    state."""
    try:
        deserialize(data)
        header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
        return load(data), dict(json.loads(header["__metadata__"][_FACTS]))
    except (SafetensorError, KeyError, TypeError, ValueError) as error:
        raise ValueError(f"this checkpoint cannot be read: {error}") from error


def with_rng_state(extra: Mapping[str, object] | None) -> dict[str, object]:
    """`extra` (plain JSON) together with torch's random state, for a checkpoint."""
    return {"rng": torch.get_rng_state().numpy().tobytes().hex(), "own": dict(extra or {})}


def restore_rng_state(extra: Mapping[str, Any]) -> dict[str, Any]:
    """Inverse of `with_rng_state`: restores torch's random state, returns `extra`."""
    torch.set_rng_state(torch.frombuffer(bytearray.fromhex(extra["rng"]), dtype=torch.uint8))
    return dict(extra["own"])


def write(folder: Path, data: bytes) -> None:
    """Replace the checkpoint in `folder`, which is created when missing. Raises OSError; the old checkpoint
    stays then."""
    write_durably(folder / NAME, data)


def read(folder: Path) -> bytes:
    """The checkpoint's bytes. Raises FileNotFoundError when there is none."""
    if not (folder / NAME).exists():
        raise FileNotFoundError(f"there is no checkpoint in {folder}")
    return (folder / NAME).read_bytes()
