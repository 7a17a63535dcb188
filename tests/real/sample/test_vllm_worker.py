"""The checks for stale weights in vLLM's worker, on plain torch modules in vLLM's place: they only ask for
names, shapes and values."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import save_file

from swarm.sample import vllm_worker


class Attention(torch.nn.Module):
    """q, k and v as one layer, as vLLM keeps them."""

    def __init__(self, parts: dict[str, torch.Tensor]) -> None:
        super().__init__()
        self.qkv_proj = torch.nn.Linear(4, 12, bias=False)
        self.norm = torch.nn.LayerNorm(4, bias=False)
        self.qkv_proj.weight.data = torch.cat([parts[f"attn.{name}_proj.weight"] for name in "qkv"])
        self.norm.weight.data = parts["attn.norm.weight"].clone()


@pytest.fixture
def parts() -> dict[str, torch.Tensor]:
    sizes = {"q": 8, "k": 2, "v": 2}
    made = {f"attn.{name}_proj.weight": torch.randn(size, 4) for name, size in sizes.items()}
    return made | {"attn.norm.weight": torch.randn(4)}


def look(
    parts: dict[str, torch.Tensor], module: torch.nn.Module, path: Path, packed: bool = False
) -> tuple[list[str], list[str]]:
    """(hidden, different)"""
    save_file({name: value.contiguous() for name, value in parts.items()}, path)
    model = torch.nn.ModuleDict({"attn": module})
    return vllm_worker.look(SimpleNamespace(get_model=lambda: model), str(path), packed)


def test_weights_as_they_were_given_are_found_also_inside_fused_ones(
    parts: dict[str, torch.Tensor], tmp_path: Path
) -> None:
    assert look(parts, Attention(parts), tmp_path / "w") == ([], [])


@pytest.mark.parametrize(
    "name", ["attn.q_proj.weight", "attn.k_proj.weight", "attn.v_proj.weight", "attn.norm.weight"]
)
def test_one_stale_tensor_is_named(parts: dict[str, torch.Tensor], name: str, tmp_path: Path) -> None:
    module = Attention(parts)
    moved = parts | {name: parts[name] * 1.01}
    assert look(moved, module, tmp_path / "w") == ([], [name])


def test_a_tensor_that_is_not_there_is_said_to_be_hidden(
    parts: dict[str, torch.Tensor], tmp_path: Path
) -> None:
    more = parts | {"attn.gate.weight": torch.ones(2)}
    assert look(more, Attention(parts), tmp_path / "w") == (["attn.gate.weight"], [])


def test_a_packed_copy_that_is_stale_is_found_by_what_it_computes(
    parts: dict[str, torch.Tensor], tmp_path: Path
) -> None:
    module, old = Attention(parts), Attention(parts).qkv_proj.weight.data.clone()
    linear = module.qkv_proj
    linear.cpu_linear = True  # type: ignore[assignment]
    linear.quant_method = SimpleNamespace(apply=lambda layer, x, bias: x @ old.T)  # type: ignore[assignment]
    assert look(parts, module, tmp_path / "w", packed=True) == ([], [])
    moved = parts | {"attn.v_proj.weight": parts["attn.v_proj.weight"].clone()}
    moved["attn.v_proj.weight"][1, 2] += 2e-3
    linear.weight.data = torch.cat([moved[f"attn.{name}_proj.weight"] for name in "qkv"])
    assert look(moved, module, tmp_path / "w", packed=True) == ([], ["attn.v_proj.weight"])
