"""Row `loop`: for how long a peer's event loop runs nothing else while a version is published or fetched,
whole and as a patch.

Two peers on real nodes (lab.processes.exchanging). What a loop does not run for so long is late by as
much: heartbeats, receipts, answers to others.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from lab.figures.table import Figure
from lab.swarms.partner import Answer, Partner

if TYPE_CHECKING:
    from lab.figures.table import Say

SIZE = 600_000_000
"""Bytes of a release: a model of 300M parameters."""

SHARE = 0.012
"""Of the values that change in a version: as at a learning rate of 1e-6."""

LONGEST = 50
"""Milliseconds: what is asked of a loop."""


def measure(say: Say, size: int = SIZE) -> list[Figure]:
    found = []
    with tempfile.TemporaryDirectory(prefix="swarm-bench-") as made:
        folders = [Path(made) / name for name in ("publisher", "receiver")]
        for folder in folders:
            folder.mkdir()
        with _peer(folders[0], []) as publisher:
            with _peer(folders[1], publisher.hear()["addresses"]) as receiver:
                receiver.hear()
                for version, form in enumerate(("whole", "as a patch")):
                    say(f"a version {form}")
                    told = publisher.ask(do="publish", version=version, size=size, share=SHARE)
                    found.append(_figure("published", form, size, told))
                    told = receiver.ask(do="fetch", release=told["release"])
                    found.append(_figure("fetched", form, size, told))
    return found


def _peer(folder: Path, bootstrap: list[str]) -> Partner:
    return Partner("lab.processes.exchanging", {"folder": str(folder), "bootstrap": bootstrap})


def _figure(what: str, form: str, size: int, told: Answer) -> Figure:
    return Figure(
        row="loop",
        what=f"longest stall while {size / 1e6:.0f} MB are {what} {form}",
        value=1000 * told["stall"],
        unit="ms",
        note=f"{told['seconds']:.1f} s in all; aim <= {LONGEST}",
    )
