"""What runs inside vLLM's worker: the weights that it holds, beside those of the file that it was given.

    VllmEngine --collective_rpc--> look(worker, file, packed) -> names in the file: hidden, different
                                   pack(worker)               -> a CPU's packed copies, made anew

vLLM can keep stale weights after a reload. A tensor that it holds as it is shows by a few rows; one that a
CPU packs, by what its layer makes of a fixed vector; a quantized one is hidden. Names in the file are those
of a checkpoint, several of whose tensors vLLM keeps as one.

Where it runs: in the process that computes, beside vLLM, which calls these functions with its worker. That is
the process of swarm.sample.vllm while vLLM has one device; another one imports this file by its name.
So it imports the standard library alone, and torch and safetensors, which are loaded there already, inside
the functions that need them. Not handled here: when to look, and what follows from it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

ROWS = 16
"""Of each tensor that are compared: a step of training moves at least one value in a hundred, and these are
thousands."""

ROUNDING = 8
"""Times the type's precision: what a product may differ by. In float32 one value that changed in its last bit
is far above it."""

FUSED = {"qkv_proj": ("q_proj", "k_proj", "v_proj"), "gate_up_proj": ("gate_proj", "up_proj")}
"""One tensor of vLLM's for several of a checkpoint, one below the other."""


def pack(worker: Any) -> None:
    """A CPU computes with packed copies of the weights, and a reload passes by those of a tied head: make
    them anew."""
    for module in worker.get_model().modules():
        if (
            hasattr(module, "cpu_linear")
            and getattr(module, "weight", None) is not None
            and module.weight.dim() == 2
        ):
            module.quant_method.process_weights_after_loading(module)


def look(worker: Any, path: str, packed: bool) -> tuple[list[str], list[str]]:
    """Names of the file's tensors that cannot be seen in the model, and of those that differ. `packed`: the
    model computes with packed copies."""
    from safetensors import safe_open

    layers = Layers(worker.get_model(), packed)
    hidden, different = [], []
    with safe_open(path, "pt") as file:
        slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118 (a file, not a dictionary)
        shapes = {name: slice.get_shape() for name, slice in slices.items()}
        for name, slice in slices.items():
            same = layers.same(slice, *place(name, shapes))
            if not same:
                hidden.append(name)
            elif not all(same):
                different.append(name)
    return hidden, different


class Layers:
    """A model's layers, by the names of a checkpoint. It changes nothing in them."""

    def __init__(self, model: Any, packed: bool) -> None:
        self._named = {name.replace(".base_layer", ""): module for name, module in model.named_modules()}
        self._packed = packed

    def same(self, slice: Any, name: str, first: int) -> list[bool]:
        """Whether what can be seen of the file's tensor, at row `first` of `name`, is as in the file: one
        answer for each way to see it, none for a tensor that is hidden."""
        layer, _, which = name.rpartition(".")
        mine, rank = getattr(self._named.get(layer), which, None), len(slice.get_shape())
        holds = mine is not None and mine.dim() == rank and mine.is_floating_point()
        seen = [_same_rows(mine, slice[:ROWS], first)] if holds else []
        if self._packed and which == "weight" and layer in self._named and rank == 2:
            sharing = self._sharing(mine) if holds else []
            seen += [_same_products(module, slice[:], first) for module in sharing or [self._named[layer]]]
        return seen

    def _sharing(self, weight: Any) -> list[Any]:
        """The layers that compute with this tensor: a tied head has it from the embedding."""
        return [module for module in self._named.values() if getattr(module, "weight", None) is weight]


def place(name: str, shapes: Mapping[str, Sequence[int]]) -> tuple[str, int]:
    """Under which name vLLM keeps a tensor of the file, and at which row it begins there."""
    for fused, parts in FUSED.items():
        for k, part in enumerate(parts):
            if f".{part}." in name:
                before = [name.replace(f".{part}.", f".{other}.") for other in parts[:k]]
                return name.replace(f".{part}.", f".{fused}."), sum(
                    shapes[other][0] for other in before if other in shapes
                )
    return name, 0


def _same_rows(mine: Any, rows: Any, first: int) -> bool:
    import torch

    return torch.equal(mine.data[first : first + len(rows)].cpu(), rows.to(mine.dtype))


def _same_products(module: Any, weight: Any, first: int) -> bool:
    """Whether a linear layer (or a head) multiplies a fixed vector as the file's weights do, but for its
    rounding."""
    import torch

    if not hasattr(module, "cpu_linear"):
        return True
    kind = module.params_dtype if hasattr(module, "params_dtype") else module.weight.dtype
    vector = torch.cos(torch.arange(weight.shape[1], dtype=torch.float32)).to(kind)
    mine = module.quant_method.apply(module, vector[None], None)[0, first : first + len(weight)].float()
    theirs = weight.to(kind).float() @ vector.float()
    return bool((mine - theirs).norm() <= ROUNDING * torch.finfo(kind).eps * theirs.norm())
