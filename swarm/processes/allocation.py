"""How memory that torch takes on a CPU comes from the kernel and goes back to it.

A page that the kernel gives is zeroed at its first touch, 4 KiB at a time: a gradient, or a call that
samples, that takes its hundreds of megabytes anew each time spends up to a tenth of its CPU on that.

    large_pages    2 MiB at a time, for tensors that are as large
    keep_freed     what was freed stays with the process, for the next call
    give_back      what was freed goes back to the kernel now
"""

from __future__ import annotations

import contextlib
import ctypes
import os

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD, M_MMAP_MAX = -1, -3, -4
"""Options of mallopt(3)."""


def large_pages() -> None:
    """Ask for them, unless the user configured torch. Torch looks at its first large tensor."""
    os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")


def keep_freed(most: int | None = None) -> None:
    """The C library keeps freed memory, up to `most` bytes in each of its arenas; None: all of it, for a
    process that needs as much again in its next call."""
    if most is None:
        options = {M_MMAP_MAX: 0, M_TRIM_THRESHOLD: -1}
    else:
        options = {M_MMAP_THRESHOLD: most, M_TRIM_THRESHOLD: most}
    for option, value in options.items():
        _ask("mallopt", option, value)


def give_back() -> None:
    """All that was freed and that the C library kept."""
    _ask("malloc_trim", 0)


def _ask(function: str, *arguments: int) -> None:
    with contextlib.suppress(AttributeError, OSError):  # only glibc has it
        getattr(ctypes.CDLL(None), function)(*arguments)
