"""Checkpoints: a learner's whole state (fp32 master weights, moments, a few facts) as bytes and as a file.

    tensors + facts --pack--> safetensors bytes --swarm.net.blobs.store--> another learner
                    --write--> the same in checkpoint.safetensors, with a checksum

One file, because two renames would not be atomic together: whole or absent, and read only as it was written.
Nothing is unpickled.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import msgspec
import torch
from msgspec import Meta
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from swarm.learn.files import safetensors_header
from swarm.storage.durable import read_checked, write_checked
from swarm.types import Struct

NAME = "checkpoint.safetensors"
_FACTS = "facts"

MOST = 1 << 53
"""The last version, and most steps: as far as floats have every integer."""

_DTYPES = {
    torch.int64: "I64",
    torch.float64: "F64",
    torch.float32: "F32",
    torch.int32: "I32",
    torch.bfloat16: "BF16",
    torch.float16: "F16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
"""In the order in which safetensors has them in a file: the largest values first, so that all are aligned."""


class Counts(Struct, frozen=True):
    """The facts by which a learner goes on."""

    version: Annotated[int, Meta(ge=-1, le=MOST)]
    """-1 where there is no policy."""
    steps: Annotated[int, Meta(ge=0, le=MOST)]
    extra: dict[str, Any]


def pack(tensors: Mapping[str, Tensor], facts: Mapping[str, object]) -> bytes:
    """Tensors, and facts (plain JSON) as metadata, to safetensors bytes."""
    return save(_plain(tensors), _metadata(facts))


def _plain(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}


def _metadata(facts: Mapping[str, object]) -> dict[str, str]:
    return {_FACTS: json.dumps(facts)}


def unpack(data: bytes) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Inverse of `pack`: tensors on the CPU, and facts. Raises ValueError for other bytes."""
    facts = read_facts(data)
    try:
        return load(data), facts
    except (SafetensorError, KeyError, TypeError) as error:  # also of a type that torch does not have
        raise ValueError(f"this checkpoint cannot be read: {error}") from error


def read_facts(data: bytes) -> dict[str, Any]:
    """The facts alone, without a check of the tensors (`unpack` has one). Raises ValueError without such
    facts."""
    try:
        header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
        return dict(json.loads(header["__metadata__"][_FACTS]))
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"this checkpoint cannot be read: {error}") from error


def counts(facts: Mapping[str, Any]) -> Counts:
    """A learner's counters, from the facts. Raises ValueError."""
    try:
        return msgspec.convert(facts, Counts)
    except msgspec.ValidationError as error:
        raise ValueError(f"this checkpoint cannot be read: {error}") from error


def with_rng_state(extra: Mapping[str, object] | None) -> dict[str, object]:
    """`extra` (plain JSON) together with torch's random state, for a checkpoint."""
    return {"rng": torch.get_rng_state().numpy().tobytes().hex(), "own": dict(extra or {})}


def read_rng_state(extra: Mapping[str, Any]) -> tuple[Tensor, dict[str, Any]]:
    """Inverse of `with_rng_state`: torch's random state, and `extra`. Raises ValueError for another form."""
    try:
        state = torch.frombuffer(bytearray.fromhex(extra["rng"]), dtype=torch.uint8)
        own = dict(extra["own"])
    except (KeyError, TypeError) as error:
        raise ValueError(f"this checkpoint cannot be read: it lacks {error}") from error
    if state.shape != torch.get_rng_state().shape:
        raise ValueError("this checkpoint is of another version of torch: its random state has another size")
    return state, own


def write(folder: Path, tensors: Mapping[str, Tensor], facts: Mapping[str, object]) -> None:
    """Replace the checkpoint in `folder`, which is created when missing, by what `pack` returns: no copy is
    made of tensors on the CPU. Raises OSError; the old checkpoint stays then."""
    order = [*_DTYPES]
    plain = sorted(_plain(tensors).items(), key=lambda item: (order.index(item[1].dtype), item[0]))
    told = {name: (_DTYPES[one.dtype], tuple(one.shape), one.nbytes) for name, one in plain}
    values = (one.view(-1).view(torch.uint8).numpy().data for _, one in plain)
    write_checked(folder / NAME, safetensors_header.header(told, _metadata(facts)), *values)


def read(folder: Path) -> bytes:
    """The checkpoint's bytes. Raises FileNotFoundError when there is none, ValueError when they are not what
    was written, OSError when the disk does not give them."""
    if not (folder / NAME).exists():
        raise FileNotFoundError(f"there is no checkpoint in {folder}")
    return read_checked(folder / NAME)
