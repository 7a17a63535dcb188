"""`swarm bench adversaries --samplers`: what one sampler of three costs that cheats."""

from __future__ import annotations

import pytest

from lab.studies.liars.cheating import Cheated, plan, suffer

LEAVES_OUT = {"every second group dropped", "one group of 12 dropped", "curation of genuine groups"}


NOT_NAMED = {"honest", "it sends nothing", *LEAVES_OUT}
"""A sampler may leave out what it draws."""


@pytest.mark.parametrize(
    "cell",
    [cell for cell in plan(quick=True) if cell.defended],
    ids=lambda cell: f"{cell.cheat}-{cell.heads}",
)
def test_each_cheat_is_named_but_those_that_nobody_finds_and_no_honest_sampler_is(cell: Cheated) -> None:
    row = suffer(cell)
    assert row["innocent"] == 0
    assert (float(row["named"]) > 0) == (cell.cheat not in NOT_NAMED)
    assert float(row["poison"]) < 0.1
