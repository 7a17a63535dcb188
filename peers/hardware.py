"""What this machine is, in a few words for the roster and the page."""

from __future__ import annotations

import os
import platform
import sys


def describe() -> str:
    """Such as `2 cores x86_64` or `H100 80 GB`. Asks torch only where the caller's role has loaded it."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available():
        properties = torch.cuda.get_device_properties(0)
        return f"{properties.name} {properties.total_memory >> 30} GB"
    return f"{os.cpu_count()} cores {platform.machine()}"
