"""Builds the wheel and the source archive as a user's pip does."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path


def build(source: Path, out: Path, *more: str) -> None:
    words = [sys.executable, "-m", "hatchling", "build", "-d", str(out), *more]
    subprocess.run(words, cwd=source, check=True, timeout=120, capture_output=True)


def only(folder: Path, pattern: str) -> Path:
    (found,) = folder.glob(pattern)
    return found
