"""Adds up the gradients of a batch's chunks in float32.

    parameters' .grad, chunk by chunk --add--> sums (float32) --vector--> (P,)
                                                              --sketch--> some of P, evenly spread

Invariant: a parameter's own gradient is freed as it is added. Not handled here: chunks
(swarm.learn.learners.learner), several devices (swarm.learn.fsdp).
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from swarm.core.gradient_checks.inner_products import InnerProducts

SKETCH = 1 << 24
"""Values of a gradient, evenly spread, from which the cosine between its halves is computed to three digits;
a copy of a large model's gradient would take gigabytes."""


class GradientAccumulator:
    """The gradients of chunks added up in float32: on the parameters' device, or in main memory where that is
    full.

    Not in the parameters: theirs may be bfloat16, and a chunk that fails half way must leave nothing behind.
    """

    def __init__(self, named: Mapping[str, nn.Parameter], page_locked: bool = False) -> None:
        """`page_locked`: the vector of a GPU's gradient comes into memory that stays where it is: copies from
        and to the GPU take a tenth of the time. torch takes a power of two of it, and keeps it for the next
        vector."""
        self._page_locked = page_locked
        self._parameters = list(named.values())
        sizes = [parameter.numel() for parameter in self._parameters]
        device = self._parameters[0].device
        try:
            self._flat = torch.empty(sum(sizes), device=device)
        except torch.OutOfMemoryError:
            self._flat = torch.empty(sum(sizes))
        pieces = self._flat.split(sizes)
        self._pieces = [piece.view_as(p) for piece, p in zip(pieces, self._parameters, strict=True)]
        self._empty = True

    @torch.no_grad()
    def add(self) -> None:
        """Take over the parameters' gradients."""
        for parameter, piece in zip(self._parameters, self._pieces, strict=True):
            if parameter.grad is None:
                piece.zero_() if self._empty else None
            elif self._empty:
                piece.copy_(parameter.grad)
            else:
                piece.add_(parameter.grad.to(piece.device))
            parameter.grad = None
        self._empty = False

    def vector(self) -> Tensor:
        """(P,) in main memory."""
        if not (self._page_locked and self._flat.is_cuda):
            return self._flat.cpu()
        try:
            there = torch.empty(len(self._flat), pin_memory=True)
        except RuntimeError:  # the system gives less of such memory than it has
            return self._flat.cpu()
        return there.copy_(self._flat)

    def sketch(self) -> Tensor:
        """A copy of at most SKETCH values, evenly spread."""
        apart = -(-len(self._flat) // SKETCH)
        # An odd distance passes through all columns of the matrices, whose widths are even.
        return self._flat[:: apart | 1].clone()


def cosine(a: Tensor, b: Tensor) -> float:
    """Cosine between the gradients of two half batches: near 1 both agree, near 0 noise hides the signal; 0
    if one is 0."""
    products = (float((one * other).sum()) for one, other in ((a, b), (a, a), (b, b)))
    return InnerProducts(*products).cosine
