"""What peers found of each other, as the diagnosis keeps it (dashboard.fold.recent)."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import NamedTuple

FRAMES = 16
"""Refused frames of a sender that are remembered."""


@dataclass(slots=True)
class Distrust:
    """Refused frames of one sender."""

    kind: str = ""
    reason: str = ""
    revoked: bool = False
    """This window itself refused one since its sender was revoked."""
    marks: deque[float] = field(default_factory=lambda: deque(maxlen=FRAMES))


class Frozen(NamedTuple):
    """A learner that does not step, since its gradients and another's cannot both be right."""

    since: float
    until: float
    unequal: bool
    """They differ in length; else they point away from each other."""
