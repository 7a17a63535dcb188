"""Runs `swarm join` and records how long its imports take, for the row `join`.

    python -m benchmarks.processes.joiner FILE join INVITE ...
        -> in FILE a line `moment seconds` for each outermost import

Times are taken where the interpreter looks up a module that is not loaded yet: -X importtime itself costs
half a second that it does not report.
"""

from __future__ import annotations

import sys
import threading
import time
from pathlib import Path
from typing import Any

bootstrap: Any = sys.modules["_frozen_importlib"]


def count_imports(path: Path) -> None:
    inner, here = bootstrap._find_and_load, threading.local()
    file = open(path, "a", buffering=1)  # noqa: SIM115 (as long as the process)

    def find_and_load(*words: Any) -> Any:
        if getattr(here, "inside", False):
            return inner(*words)
        here.inside, began = True, time.time()
        try:
            return inner(*words)
        finally:
            here.inside = False
            file.write(f"{time.time()} {time.time() - began}\n")

    bootstrap._find_and_load = find_and_load


def main() -> int:
    count_imports(Path(sys.argv[1]))
    from peers.cli import main as swarm

    return swarm(sys.argv[2:])


if __name__ == "__main__":
    sys.exit(main())
