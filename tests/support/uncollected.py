"""Code that makes many objects and no garbage."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def uncollected() -> Iterator[None]:
    """Without the collector of garbage, which would walk the syntax trees of many files again and again: that
    takes half as long as reading them does."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
