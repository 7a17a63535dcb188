"""The row that compares batches filled by signal with batches of all groups."""

from __future__ import annotations

from lab.figures.table import Figure
from lab.rows.simulated import refill


def test_batches_of_signal_cost_more_sampled_tokens_and_are_compared_at_equal_versions() -> None:
    said: list[str] = []
    accuracy, tokens = refill.measure(said.append, seeds=(1, 2), versions=20, domains=("toy",))
    assert isinstance(accuracy, Figure) and isinstance(tokens, Figure) and tokens.other is not None
    assert tokens.value > tokens.other, "flat groups made room"
    assert "at versions 0, 20" in accuracy.note and "over 2 seeds" in accuracy.note
    assert len(said) == 4
