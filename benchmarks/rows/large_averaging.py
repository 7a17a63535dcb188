"""Row `averaging-100M`: the row `averaging` with 100M parameters, minutes by itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks.rows import averaging
from benchmarks.table import Figure

if TYPE_CHECKING:
    from benchmarks import Say

SIZES = (100_000_000,)


def measure(say: Say) -> list[Figure]:
    return averaging.measure(say, SIZES, row="averaging-100M")
