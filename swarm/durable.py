"""Writes files durably: after a crash or a power failure the old or the new content is there, whole.

Temporary file, fsync, rename, fsync of the folder: without either fsync a crash can lose or tear the file.
"""

from __future__ import annotations

import os
from pathlib import Path


def write_durably(path: Path, content: bytes | memoryview, mode: int = 0o644) -> None:
    """Replace the file `path` by `content`, with the permissions `mode` (0600 for secrets).

    Raises OSError; the old content is still there then.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(path.name + ".new")
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        temporary.unlink(missing_ok=True)
        # A failing write names no file, and a person wants to know which disk is full.
        error.filename = error.filename or str(path)
        raise
    temporary.rename(path)
    sync(path.parent)


def sync(path: Path) -> None:
    """fsync a file's content, or the renames inside a folder."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
