"""Rows of parametrized tests of which `make test` plays some and `make test-nightly` all."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import product

import pytest


def nightly(rows: Iterable[object]) -> list[object]:
    """These rows, left to `make test-nightly`. A row of several values is a tuple."""
    return [
        pytest.param(*(row if isinstance(row, tuple) else (row,)), marks=pytest.mark.nightly) for row in rows
    ]


def each_once(*axes: Sequence[object]) -> list[object]:
    """The product of these axes. `make test` plays as many rows as the longest axis has values: each value of
    each axis once."""
    kept = [tuple(axis[k % len(axis)] for axis in axes) for k in range(max(map(len, axes)))]
    return [*kept, *nightly(row for row in product(*axes) if row not in kept)]
