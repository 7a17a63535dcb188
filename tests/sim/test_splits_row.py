"""The row `splits`: what merged lines are compared with."""

from __future__ import annotations

import pytest

from lab.figures.table import Figure
from lab.rows import splits
from lab.rows.splits import Played


def values(figures: list[Figure]) -> dict[str, tuple[float, float | None]]:
    return {figure.what.partition(": ")[2]: (figure.value, figure.other) for figure in figures}


def test_figures_are_means_over_seeds_and_name_both_rules() -> None:
    merge = [Played(trained=100 + k, vain=0, wrong=0, merges=1, rewards=(0.5, 0.7)) for k in (0, 2)]
    longest = [Played(trained=99, vain=40, wrong=1, merges=0, rewards=(0.6, 0.8))] * 2
    said = values(splits._figures(30.0, merge, longest))
    assert said["groups trained that count"] == (101.0, 99.0)
    assert said["groups learnt on in vain"] == (0.0, 40.0)
    assert said["lost, doubled, two digests after"] == (0.0, 1.0)
    assert said["reward 10 to 30 s after"] == (0.5, 0.6)


@pytest.mark.slow
def test_a_merge_keeps_what_longest_learns_on_again() -> None:
    said = values(splits.measure(lambda _: None, seeds=(1,), cuts=(30.0,)))
    kept, again = said["groups learnt on in vain"]
    assert again is not None and kept < 10 < again
    assert said["lost, doubled, two digests after"] == (0.0, 0.0)
