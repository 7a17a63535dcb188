"""Studies: `swarm bench gradient`, `staleness`, `band` and `adversaries`, experiments that produce a report.

plan (cells, in the order in which they matter) --> ledger (one line a cell, all cores, resumable) --> CSV,
PNG, report
"""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Callable, Collection, Sequence
from functools import partial
from pathlib import Path

from peers.errors import CannotHere, say
from peers.runtime import signals
from swarm import extras

ADVERSARIES = ("learners", "samplers", "honest")
"""The parts of the study `adversaries`."""

STUDIES = {
    "gradient": ("--quick", "--out", "--methods", "--seed"),
    "staleness": ("--quick", "--out", "--methods", "--minutes", "--seed"),
    "band": ("--quick", "--out", "--minutes"),
    "adversaries": ("--quick", "--out", "--minutes"),
    "nemesis": ("-n", "--seed"),
}
"""Study -> the options that it takes."""


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
    first one, `whose` which of ADVERSARIES are tried, all within `minutes`.

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
        return _within(minutes, [partial(parts[part], quick, folder) for part in whose])
    from peers.studies import staleness

    return staleness.main(quick, folder, methods, minutes, 1 if seed is None else seed)


def _within(minutes: float, parts: Sequence[Callable[[float], int]]) -> int:
    """Do one part after the other, each in what is left of the time; 0: no limit. Returns an exit code."""
    end, codes = time.monotonic() + 60 * minutes, []
    for part in parts:
        left = (end - time.monotonic()) / 60 if minutes else 0.0
        if minutes and left <= 0:
            say("the time is up, and parts of the study are left: the same command goes on there")
            break
        codes.append(part(left))
    return max(codes)
