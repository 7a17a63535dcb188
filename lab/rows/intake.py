"""Row `intake`: CPU that one group costs its learner, from the frame's bytes to the receipt, without a
network.

`LearnerInbox.receive` with a real journal and log on the disk, fresh groups of 8 completions. CPU time hardly
depends on who else uses the machine, so two commits can be compared by it. The log's wait for the disk is no
CPU and not in it; the row `groups` has that, and the streams.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from statistics import median, quantiles
from typing import TYPE_CHECKING

from lab.figures.table import Figure
from lab.swarms.partner import Answer, Partner

if TYPE_CHECKING:
    from lab.figures.table import Say

SIZES: Mapping[int, int] = {0: 1000, 90: 1000, 512: 200, 7300: 48}
"""Tokens of a completion (0: the demo's answers of 6) -> groups; 0.7, 4, 19 and 256 KiB."""

TURNS = 5
"""Parts of a size's groups, which take turns."""

WARM = 20
"""Groups before those that count: the first ones load tables and fill caches."""


def measure(say: Say, sizes: Mapping[int, int] = SIZES) -> list[Figure]:
    from peers.build.model import base_model
    from swarm.settings.config import Run

    model = str(base_model.folder(Run()))
    with (
        tempfile.TemporaryDirectory(prefix="swarm-bench-") as folder,
        Partner("lab.processes.intake_cost", {"folder": folder, "model": model}) as learner,
    ):
        learner.hear()
        learner.ask(tokens=0, frames=WARM)
        figures: list[Figure] = []
        for tokens, frames in sizes.items():
            say(f"{frames} groups of 8 x {tokens or 6} tokens")
            figures += _figures(tokens, learner.ask(tokens=tokens, frames=frames))
    return figures


def _figures(tokens: int, told: Answer) -> Iterator[Figure]:
    size = f"a group of 8 x {tokens or 6} tokens"
    for what, key in (("CPU", "cpu"), ("CPU on the event loop", "loop")):
        groups = [1e6 * seconds for seconds in told[key]]
        turns = [median(groups[turn::TURNS]) for turn in range(TURNS)]
        rare = f"p95 of {len(groups)} groups {quantiles(groups, n=20)[-1]:.0f} us"
        note = f"{told['bytes'] / 1024:.1f} KiB, {1e6 / median(turns):.0f} groups a CPU second, {rare}"
        yield Figure.of_turns(turns, row="intake", what=f"{what}, {size}", unit="us", note=note)
