"""The table of `swarm bench adversaries`, from its rows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean
from typing import TYPE_CHECKING

from peers.studies.experiments import Row

if TYPE_CHECKING:
    from peers.studies.adversaries import Attacked


def table(done: Sequence[tuple[Attacked, Row]]) -> str:
    """Markdown: a row an attack, means over seeds."""
    lines = [
        "| attack | reward | undefended | named after | named in | others named | recomputed | named after |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for attack in dict.fromkeys(cell.attack for cell, _ in done):
        with_, without, again = (
            [row for one, row in done if (one.attack, one.defended, one.gradients) == (attack, *how)]
            for how in ((True, False), (False, False), (True, True))
        )
        lines.append(
            f"| {attack} | {_mean(with_, 'reward'):.3f} | {_mean(without, 'reward'):.3f} |"
            f" {_mean(with_, 'rounds'):.1f} | {_mean(with_, 'named'):.0%} | {_mean(with_, 'innocent'):.1%} |"
            f" {_mean(again, 'reward'):.3f} | {_mean(again, 'rounds'):.1f} |"
        )
    return "\n".join(lines)


def _mean(rows: Sequence[Row], figure: str) -> float:
    return fmean(float(row[figure]) for row in rows) if rows else math.nan
