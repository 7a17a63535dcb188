"""A checkpoint on disk: tensors and a few facts in one safetensors file, replaced in one atomic rename.

temporary file -> fsync -> rename over the old one -> fsync of the folder: whatever moment the power goes, the folder holds the
old checkpoint or the new one, whole. Without either fsync data are lost or torn in most crash states. One file, because two
renames would not be atomic together. Nothing here is ever unpickled.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

NAME = "checkpoint.safetensors"


def write(folder: Path, tensors: Mapping[str, Tensor], facts: Mapping[str, object]) -> None:
    """Replace the checkpoint in `folder` (made when missing). OSError when the disk says no; the old one stays then."""
    folder.mkdir(parents=True, exist_ok=True)
    data = save({name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}, {"facts": json.dumps(facts)})
    draft = folder / f".{NAME}.{os.getpid()}"
    try:
        with open(draft, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(draft, folder / NAME)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def read(folder: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Tensors (on the CPU) and facts. FileNotFoundError without a checkpoint, ValueError when it cannot be read."""
    path = folder / NAME
    if not path.exists():
        raise FileNotFoundError(f"there is no checkpoint in {folder}")
    try:
        with safe_open(path, framework="pt") as file:
            tensors: dict[str, torch.Tensor] = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (no mapping)
            return tensors, json.loads(file.metadata()["facts"])
    except (SafetensorError, KeyError, TypeError, ValueError) as error:
        raise ValueError(f"the checkpoint in {folder} cannot be read: {error}") from error
