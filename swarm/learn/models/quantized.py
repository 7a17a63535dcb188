"""Models with linear layers in 8 or 4 bits (bitsandbytes), for sampling and as a base of adapters.

    int8    LLM.int8() without its mixed decomposition: one scale a row, activations in 8 bits, too
    nf4     4-bit normal float in blocks of 64 with scales in 8 bits, as QLoRA does it

The head and the embeddings stay as they are. A release travels in bfloat16; `put` quantizes it layer by layer
straight from its bytes, so that no second copy of the weights is kept. Decomposition of outliers is off
because it looks at the whole batch: a group would depend on its neighbours. Not handled here: training
quantized weights.
"""

from __future__ import annotations

import logging
from collections.abc import Collection
from typing import Any

import torch
from torch import Tensor, nn

from swarm import extras
from swarm.learn.files import weights
from swarm.learn.files.release_file import ReleaseFile


def settings(kind: str, dtype: torch.dtype) -> Any:
    """The quantization_config for `from_pretrained`. Raises ImportError with what to install."""
    _bitsandbytes()
    from transformers import BitsAndBytesConfig

    if kind == "int8":
        return BitsAndBytesConfig(load_in_8bit=True, llm_int8_threshold=0.0)
    return BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_compute_dtype=dtype,
        bnb_4bit_use_double_quant=True,
    )


def replace_linears(model: nn.Module, kind: str, dtype: torch.dtype) -> None:
    """Replace all linear layers but the head by quantized ones without weights; `put` sets these."""
    bnb = _bitsandbytes()
    head = model.get_output_embeddings()  # type: ignore[operator]
    for name, linear in list(model.named_modules()):
        if type(linear) is not nn.Linear or linear is head:
            continue
        size = (linear.in_features, linear.out_features, linear.bias is not None)
        with torch.device("meta"):
            if kind == "int8":
                new = bnb.nn.Linear8bitLt(*size, has_fp16_weights=False, threshold=0.0)
            else:
                new = bnb.nn.Linear4bit(
                    *size, compute_dtype=dtype, compress_statistics=True, quant_type="nf4"
                )
        new.weight, new.bias = None, linear.bias
        model.set_submodule(name, new)
    keep_one_forward(model)


def keep_one_forward(model: nn.Module) -> None:
    """Make NF4 layers compute alike on all CPUs, with a gradient and without.

    Where a CPU has AVX512-BF16, bitsandbytes packs the weights at the first forward without a gradient,
    computes in bfloat16 from then on and passes no gradient any more.
    """
    bnb = _bitsandbytes()
    for module in model.modules():
        if isinstance(module, bnb.nn.Linear4bit):
            module.support_avx512bf16_for_cpu = False


@torch.no_grad()
def put(model: nn.Module, release: ReleaseFile, names: Collection[str]) -> None:
    """Set these weights of a quantized model to those of a full policy's release.

    Raises ValueError or Damaged, with nothing changed, as swarm.learn.files.weights.copy does.
    """
    bnb = _bitsandbytes()
    linears = {
        f"{name}.weight": module
        for name, module in model.named_modules()
        if isinstance(module, (bnb.nn.Linear4bit, bnb.nn.Linear8bitLt))
    }
    state = model.state_dict()
    owners = {name.removesuffix("weight") for name in linears}
    whole = {name: state[name] for name in state if not _inside(name, owners)}
    mine = {name: tuple(whole[name].shape) for name in weights.own_names(whole)}
    mine |= {name: (linear.out_features, linear.in_features) for name, linear in linears.items()}
    weights.check(release.shapes, mine)
    release.check(names)
    device = next(tensor.device for tensor in whole.values())
    for name in names:
        if name in linears:
            linears[name].weight = _quantized(linears[name], release.tensor(name)).to(device)
        else:
            for rows, piece in release.pieces(name):
                torch.atleast_1d(whole[name])[rows] = piece


def _quantized(linear: Any, tensor: Tensor) -> Any:
    """The weight on the CPU; bitsandbytes quantizes it when it moves to its device."""
    bnb = _bitsandbytes()
    if isinstance(linear, bnb.nn.Linear8bitLt):
        return bnb.nn.Int8Params(tensor, requires_grad=False, has_fp16_weights=False)
    kind = {"quant_type": "nf4", "compress_statistics": True, "module": linear}
    return bnb.nn.Params4bit(tensor.to(linear.compute_dtype), requires_grad=False, **kind)


def _inside(name: str, owners: set[str]) -> bool:
    """Whether a tensor is the weight of a quantized layer, not its bias."""
    return any(name.startswith(owner) for owner in owners) and not name.endswith(".bias")


def _bitsandbytes() -> Any:
    try:
        import bitsandbytes
        import bitsandbytes.autograd._functions as loud
    except ImportError as error:
        line = extras.install("quant")
        raise ImportError(f"weights in 8 or 4 bits need bitsandbytes: {line}") from error
    loud.logger.setLevel(logging.ERROR)  # it warns at every product that int8 is computed from float16
    return bitsandbytes
