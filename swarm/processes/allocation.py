"""How memory that torch takes on a CPU comes from the kernel and goes back to it.

A page that the kernel gives is zeroed at its first touch, 4 KiB at a time: a gradient, or a call that
samples, that takes its hundreds of megabytes anew each time spends up to a tenth of its CPU on that.

    large_pages    2 MiB at a time, for tensors that are as large
    keep_freed     what was freed stays with the process, for the next call
    give_back      what was freed goes back to the kernel now
    resident       how much the process has
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import re

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


def resident() -> tuple[int, int]:
    """Bytes that this process has in memory now, and at its peak; 0 where the kernel does not report them.
    From /proc, since getrusage's maximum begins with the parent's memory."""
    try:
        with open("/proc/self/status", "rb", buffering=0) as file:  # a learner asks twice for each chunk
            fields = dict(re.findall(rb"^(VmRSS|VmHWM):\s+(\d+) kB", file.read(), re.MULTILINE))
    except OSError:
        return 0, 0
    return int(fields.get(b"VmRSS", 0)) << 10, int(fields.get(b"VmHWM", 0)) << 10
