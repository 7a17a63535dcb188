"""Inner products of two vectors, summed up part by part."""

from __future__ import annotations

import math
from typing import NamedTuple


class InnerProducts(NamedTuple):
    """Of two vectors, such as one member's gradient and the mean; those of further parts add up."""

    both: float = 0.0
    one: float = 0.0
    """Of the first with itself."""
    other: float = 0.0

    def and_of(self, more: InnerProducts) -> InnerProducts:
        """Of the parts of both."""
        return InnerProducts(*map(float.__add__, self, more))

    @property
    def cosine(self) -> float:
        """0 where one of them is zeros."""
        return self.both / math.sqrt(self.one * self.other) if self.one * self.other > 0 else 0.0
