"""The weighted mean of members' tensors, the same bits wherever it is made of the same ones."""

from __future__ import annotations

from collections.abc import Sequence

import torch


def weighted_mean(parts: Sequence[torch.Tensor], weights: Sequence[float]) -> torch.Tensor:
    """sum_i w_i p_i / sum_i w_i in float32, added in this order and divided once. `parts` have one shape;
    `weights` are not all 0."""
    total = torch.zeros_like(parts[0], dtype=torch.float32)
    for part, weight in zip(parts, weights, strict=True):
        total.add_(part, alpha=weight)
    return total.div_(sum(weights))
