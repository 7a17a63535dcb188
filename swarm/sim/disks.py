"""Disks of simulated peers: a folder for each, which outlives the peer's lives, and damage to its files.

Files are real and small. Not handled here: what a peer keeps in its folder (the roles), when it is damaged
(swarm.sim.world).
"""

from __future__ import annotations

import os
from pathlib import Path
from random import Random

FLIPPED = 64
"""Bytes of which bits are flipped: a sector's worth of a small file."""


def damage(folder: Path, pattern: str, how: str, rng: Random) -> None:
    """Damage one file below `folder` that matches, or delete all of them; nothing where none does."""
    files = sorted(path for path in folder.glob(pattern) if path.is_file())
    if how == "delete":
        for path in files:
            path.unlink()
    elif files:
        _spoil(rng.choice(files), how, rng)


def _spoil(path: Path, how: str, rng: Random) -> None:
    size = path.stat().st_size
    if how == "flip":
        start = rng.randrange(max(1, size - FLIPPED))
        with open(path, "rb+") as file:
            file.seek(start)
            bits = bytes(byte ^ 0x55 for byte in file.read(FLIPPED))
            file.seek(start)
            file.write(bits)
    else:
        os.truncate(path, 0 if how == "empty" else rng.randrange(max(1, size)))
