"""The noise of sampling as one kernel on a GPU, where step by step it would be three hundred small ones.

    keys, first blocks --one program for a row and some blocks--> (N, V) float32

Triton has Philox4x64 itself; the order of its words is swarm.draws.noise's. Importing this module needs
Triton, and its first call a C compiler.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra import libdevice

AT_ONCE: int = 128
"""Blocks of one program: four warps, a block for each thread."""


@triton.jit
def _noise(out, keys, first, blocks, vocabulary, AT_ONCE: tl.constexpr):  # type: ignore[no-untyped-def]
    row = tl.program_id(0).to(tl.int64)
    block = tl.program_id(1) * AT_ONCE + tl.arange(0, AT_ONCE)
    counter = (tl.load(first + row) + 1 + block).to(tl.uint64)
    nought = counter ^ counter
    key = nought + tl.load(keys + row).to(tl.uint64)
    drawn = tl.philox_impl(counter, nought, nought, nought, key, nought, 10)
    for part in tl.static_range(4):
        for half in tl.static_range(2):
            word = (drawn[part] >> (32 * half)).to(tl.uint32)
            u = (word.to(tl.float32) + 0.5) * -2.3283064365386963e-10  # -(2^-32)
            token = block * 8 + 2 * part + half
            gumbel = -libdevice.log(-libdevice.log1p(u))
            tl.store(out + row * vocabulary + token, gumbel, mask=(block < blocks) & (token < vocabulary))


def gumbel_on(keys: Tensor, first: Tensor, blocks: int, vocabulary: int) -> Tensor:
    """`swarm.draws.noise.gumbel` of the first `vocabulary` words of `swarm.draws.noise.words_on`, on a
    GPU."""
    out = torch.empty(len(keys), vocabulary, device=keys.device)
    grid = (len(keys), triton.cdiv(blocks, AT_ONCE))
    with torch.cuda.device(keys.device):
        _noise[grid](out, keys, first.contiguous(), blocks, vocabulary, AT_ONCE=AT_ONCE)
    return out
