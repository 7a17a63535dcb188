"""Writes a release as the folder of files that vLLM loads.

    whole weights -> the model's own files (links) + model.safetensors, a link to the release's file
    an adapter    -> adapter_config.json + adapter_model.safetensors

A release whose shapes are not those of the run's model raises ValueError and is not written. `score` computes
log-probabilities with such a folder's weights in transformers; a server's answers are compared with them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch

from swarm.learn.files import weights
from swarm.learn.files.release_file import ReleaseFile
from swarm.learn.models import adapters
from swarm.learn.models.model import load_policy
from swarm.learn.models.pretrained import config_of
from swarm.settings.config import Lora
from swarm.storage.blocks import Blocks

WEIGHTS = ("*.safetensors", "*.safetensors.index.json")
REFERENCE = 1_000_000_000
"""Parameters of the largest model that `score` runs beside a server: a second and 4 GB in float32 on a
CPU."""


def whole(model: Path) -> Callable[[Blocks, Path], None]:
    """A function that writes (a release of all weights, folder)."""
    shapes = _shapes(model, None)

    def write(blocks: Blocks, folder: Path) -> None:
        _check(blocks, shapes)
        folder.mkdir(parents=True)
        for path in model.iterdir():
            if path.is_file() and not any(path.match(pattern) for pattern in WEIGHTS):
                (folder / path.name).symlink_to(path.resolve())
        blocks.put(folder / "model.safetensors")

    return write


def adapter(model: Path, lora: Lora) -> Callable[[Blocks, Path], None]:
    """A function that writes (a release of an adapter, folder)."""
    shapes = _shapes(model, lora)

    def write(blocks: Blocks, folder: Path) -> None:
        _check(blocks, shapes)
        adapters.write_folder(folder, blocks, lora, str(model))

    return write


def _check(blocks: Blocks, shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Raise ValueError for a release of another model, Damaged for an unreadable one."""
    release = ReleaseFile(blocks)
    weights.check(release.shapes, shapes)
    release.check(release.places)


def size(model: Path) -> int:
    """Parameters of a release."""
    return sum(math.prod(shape) for shape in _shapes(model, None).values())


@torch.no_grad()
def score(folder: Path, ids: Sequence[int]) -> list[float]:
    """Log-probabilities of all tokens but the first at temperature 1, computed with the folder's weights in
    float32 on the CPU."""
    logits = load_policy(folder)(torch.tensor([list(ids)])).logits[0, :-1].float()
    return torch.log_softmax(logits, -1).gather(1, torch.tensor(ids[1:])[:, None])[:, 0].tolist()


def _shapes(model: Path, lora: Lora | None) -> dict[str, tuple[int, ...]]:
    """Name -> shape of a release of this model, from its config alone: no memory is allocated."""
    from transformers import AutoModelForCausalLM

    with torch.device("meta"):
        empty = AutoModelForCausalLM.from_config(config_of(model), trust_remote_code=False)
        if lora is not None:
            return {
                name: tuple(tensor.shape)
                for name, tensor in weights.state(adapters.wrap(empty, lora, seed=0)).items()
            }
    # A release has tied tensors once, under the last of their names.
    own = {id(tensor): name for name, tensor in sorted(empty.named_parameters(remove_duplicate=False))}
    tied = {name for name, _ in empty.named_parameters(remove_duplicate=False)} - set(own.values())
    return {name: tuple(tensor.shape) for name, tensor in empty.state_dict().items() if name not in tied}
