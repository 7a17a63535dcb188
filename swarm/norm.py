"""The L2 norm of a tensor, right for any number of values; not finite when a value is not.

torch's own adds the squares of all values in float32, on a processor: of random values it makes 1.4 % less of
126M, 10 % of 600M, 25 % of 1.5B.
"""

from __future__ import annotations

import math

import numpy as np
import torch

PART = 1 << 18
"""Values of which torch's own is right to six digits. A round takes several norms of each part that is no
larger, and waits for Python's lock after each of torch's functions."""

ROW = 1024
"""Values of larger tensors whose squares are added in float32: the norm is right to eight digits."""

LARGEST = 1e30
"""No gradient has a larger norm; its square still is a float."""


def norm(tensor: torch.Tensor) -> float:
    """L2 norm of a tensor of any shape in main memory. Not finite when a value is not, or is so large (1e17
    and more) that the squares of a row are not."""
    flat = tensor.detach().reshape(-1)
    if flat.numel() <= PART:
        return float(torch.linalg.vector_norm(flat, dtype=torch.float32))
    whole = flat.numel() // ROW * ROW
    of_rows = torch.linalg.vector_norm(flat[:whole].view(-1, ROW), dim=1, dtype=torch.float32)
    rest = torch.linalg.vector_norm(flat[whole:], dtype=torch.float32)
    return math.hypot(math.sqrt(np.square(of_rows.numpy(), dtype=np.float64).sum()), float(rest))
