"""Studies: `swarm bench gradient`, `staleness`, `band` and `adversaries`, experiments that produce a report.

plan (cells, in the order in which they matter) --> ledger (one line a cell, all cores, resumable) --> CSV,
PNG, report
"""

from __future__ import annotations

import importlib.util
from collections.abc import Collection, Sequence
from pathlib import Path

from peers.errors import CannotHere
from peers.runtime import signals
from swarm import extras

ADVERSARIES = ("learners", "samplers", "honest")
"""The parts of the study `adversaries`."""

STUDIES = ("gradient", "staleness", "band", "adversaries")


def main(
    name: str,
    quick: bool,
    out: Path | None,
    methods: Sequence[str],
    minutes: float,
    seed: int | None,
    whose: Collection[str] = ADVERSARIES,
) -> int:
    """Run or resume a study; `out` is its folder (default: ./bench-NAME, or ./bench-NAME-quick), `seed` its
    first one, `whose` which of ADVERSARIES are tried.

    Returns an exit code. Raises CannotHere without matplotlib, before hours are spent.
    """
    from peers.studies.method_names import chosen

    if importlib.util.find_spec("matplotlib") is None:
        raise CannotHere(
            f"a study draws its figures with matplotlib, which is not installed: {extras.install('bench')}"
        )

    signals.interrupt()
    for label in methods:
        chosen(label)  # before anything is measured, a word that names no method is refused
    folder = out or Path(f"bench-{name}-quick" if quick else f"bench-{name}")
    if name == "gradient":
        from peers.studies import gradient

        return gradient.main(quick, folder, methods, seed or 0)
    if name == "band":
        from peers.studies import band

        return band.main(quick, folder, minutes)
    if name == "adversaries":
        from peers.studies import adversaries, cheating, honest

        parts = {"learners": adversaries.main, "samplers": cheating.main, "honest": honest.main}
        return max(parts[part](quick, folder, minutes) for part in whose)
    from peers.studies import staleness

    return staleness.main(quick, folder, methods, minutes, seed or 1)
