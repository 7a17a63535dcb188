"""Files that matter: written whole or not at all, whatever happens to the power.

Temporary file, fsync, rename, fsync of the folder: without either fsync a crash loses or tears the file.
"""

from __future__ import annotations

import os
from pathlib import Path


def write_durably(path: Path, content: bytes) -> None:
    """Replace `path` by `content`. Raises OSError; the old content is then still there."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(path.name + ".new")
    try:
        with open(temporary, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        temporary.unlink(missing_ok=True)
        # A failing write names no file, and a person wants to know which disk is full.
        error.filename = error.filename or str(path)
        raise
    temporary.rename(path)
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Make renames inside the folder durable."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
