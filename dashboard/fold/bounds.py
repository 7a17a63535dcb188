"""How much a SwarmState keeps. Memory, a reader's first view and the saved file grow with each number."""

from __future__ import annotations

from typing import NamedTuple


class Bounds(NamedTuple):
    """The largest numbers of things that are kept."""

    points: int = 2000
    """Points of a curve, more than a screen has columns. At the limit every second one is dropped, so that a
    long run keeps its shape."""
    events: int = 1000
    """Sentences in the list of events."""
    peers: int = 1000
    """Rows of peers; one that left is dropped first, then strangers, then the one that was lost longest ago.
    While all are here, further samplers and observers get none."""
    samples: int = 24
    """Groups that can be read: each has the text of all its completions."""
    releases: int = 512
    """Releases whose spread is shown."""
    columns: int = 180
    """Columns of the map of lags, at least 2; at the limit two are merged into one."""


BOUNDS = Bounds()
"""Of the product. Tests have smaller ones, which are reached sooner."""
