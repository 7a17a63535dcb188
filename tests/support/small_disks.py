"""Small file systems of a test's own, and how they fill up."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def mounted_by(target: Path, *commands: Sequence[str]) -> Iterator[Path]:
    """A new folder on which these commands mount a file system; a test is skipped where they cannot."""
    target.mkdir()
    for words in commands:
        try:
            made = subprocess.run(words, capture_output=True, text=True, check=False)
        except FileNotFoundError as error:
            pytest.skip(f"{words[0]} is not here: {error.strerror}")
        if made.returncode:
            pytest.skip(f"cannot make and mount a small file system here: {made.stderr.strip()}")
    try:
        yield target
    finally:
        subprocess.run(["umount", "-l", str(target)], check=False)


@contextmanager
def small_memory_disk(target: Path) -> Iterator[Path]:
    """Three megabytes."""
    with mounted_by(target, ["mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", str(target)]) as disk:
        yield disk


def fill(disk: Path) -> None:
    """No byte is left."""
    with open(disk / "ballast", "ab", buffering=0) as ballast:
        for size in (1 << 16, 1 << 12, 1):
            while True:
                try:
                    ballast.write(bytes(size))
                except OSError:
                    break
