"""A package of a task source, made on the disk: importable and installed, with a version."""

from __future__ import annotations

from pathlib import Path

MODULE = """
from swarm.tasks.builtin.digit_sums import DigitSums


class Mine(DigitSums):
    environment = "mine"
"""


def package(folder: Path, number: str) -> Path:
    """Version `number` of the package `my-tasks`, whose source is `mine`; one that was here is replaced."""
    folder.mkdir(exist_ok=True)
    (folder / "my_tasks.py").write_text(MODULE)
    for old in folder.glob("*.dist-info"):
        old.rename(folder / f"my_tasks-{number}.dist-info")
    here = folder / f"my_tasks-{number}.dist-info"
    here.mkdir(exist_ok=True)
    (here / "METADATA").write_text(f"Metadata-Version: 2.1\nName: my-tasks\nVersion: {number}\n")
    (here / "entry_points.txt").write_text("[swarm.tasks]\nmine = my_tasks:Mine\n")
    (here / "top_level.txt").write_text("my_tasks\n")
    return folder
