"""The L2 norm of a tensor; not finite when a value is not."""

from __future__ import annotations

import math

import torch

CHUNK = 1 << 18
"""Values whose squares are added in float32: a sum of many more loses the small ones."""

LARGEST = 1e30
"""No gradient has a larger norm; its square still is a float."""


def norm(tensor: torch.Tensor) -> float:
    """L2 norm of a tensor of any shape. Not finite when a value is not, or is so large (from 1e19) that its
    square is not."""
    chunks = tensor.detach().reshape(-1).split(CHUNK)
    return math.sqrt(
        sum(float(torch.linalg.vector_norm(chunk, dtype=torch.float32)) ** 2 for chunk in chunks)
    )
