"""Studies: `swarm bench gradient` and `swarm bench staleness`, experiments whose answer is a report and not one row of a table.

    plan (cells, in the order in which they matter) --> ledger (one line a cell, all cores, resumable) --> CSV, PNG, report
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from peers.errors import Interrupted, WrongUsage

STUDIES = ("gradient", "staleness")


def main(name: str, quick: bool, out: Path | None, methods: Sequence[str], minutes: float) -> int:
    """Do, or go on with, a study; `out` is its folder (default: ./bench-NAME, or ./bench-NAME-quick). Returns an exit code."""
    from swarm.learn.objectives import objective

    signal.signal(signal.SIGTERM, _leave)
    try:
        for method in methods:
            objective(method)
    except ValueError as error:
        raise WrongUsage(str(error)) from error
    folder = out or Path(f"bench-{name}-quick" if quick else f"bench-{name}")
    if name == "gradient":
        from peers.study import gradient

        return gradient.main(quick, folder, methods)
    from peers.study import staleness

    return staleness.main(quick, folder, methods, minutes)


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _leave(number: int, _: Any) -> None:
    raise Interrupted(number)  # so that the workers end; the ledger keeps what is done
