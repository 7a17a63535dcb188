"""Calibration: factors between measured and predicted memory and time, by device and work, in a file of this
user's state folder.

A memory prediction must not be too low twice: its factor rises at once, and falls halfway. A time factor
moves halfway in both directions. When the file cannot be read, all factors are 1; when it cannot be written,
a message says that the measurement is forgotten.
"""

from __future__ import annotations

import math
import sys
from pathlib import Path

import msgspec
import platformdirs

from swarm.limits import UNREADABLE
from swarm.storage.durable import write_durably
from swarm.types import Struct

BOUNDS = (0.5, 50.0)
"""Bounds of a factor: one measurement on a busy machine must not make every later prediction absurd."""


class Correction(Struct):
    memory: float = 1.0
    time: float = 1.0
    measured: int = 0
    """Number of measurements."""


class Corrections:
    def __init__(self, device: str, path: Path | None = None) -> None:
        self.path = path or platformdirs.user_state_path("swarm") / "fit.json"
        self._device = device
        try:
            self._all = msgspec.json.decode(self.path.read_bytes(), type=dict[str, dict[str, Correction]])
        except (OSError, *UNREADABLE):
            self._all = {}

    def of(self, work: str) -> Correction:
        """`work` names a role, a kind and a size: `sampler nf4 1e9`."""
        return self._all.get(self._device, {}).get(work, Correction())

    def count(self) -> int:
        """Measurements on this device."""
        return sum(correction.measured for correction in self._all.get(self._device, {}).values())

    def learn(self, work: str, memory: float, time: float | None) -> Correction:
        """Update the factors from one measurement; `memory` and `time` are the ratios of measured to
        uncorrected prediction. Returns the new factors."""
        old = self.of(work)
        memory = _bounded(memory)
        if old.measured and memory < old.memory:
            memory = (old.memory + memory) / 2
        pace = old.time if time is None else _bounded(time)
        if old.measured and time is not None:
            pace = math.sqrt(old.time * pace)
        new = Correction(memory=memory, time=pace, measured=old.measured + 1)
        self._all.setdefault(self._device, {})[work] = new
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            write_durably(self.path, msgspec.json.format(msgspec.json.encode(self._all)))
        except OSError as error:
            print(
                f"{self.path} cannot be written ({error.strerror}): this measurement is forgotten",
                file=sys.stderr,
            )
        return new


def _bounded(factor: float) -> float:
    low, high = BOUNDS
    return min(high, max(low, factor))
