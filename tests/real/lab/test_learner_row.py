"""Row `learner` of the benchmark, on one layer and its shortest batch."""

from __future__ import annotations

import pytest

from lab.rows import learner


def test_the_row_has_seconds_tokens_memory_and_the_difference_of_both_ways(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (shape, asked), *_ = learner.SHAPES.items()
    monkeypatch.setattr(learner, "SHAPES", {shape: asked})
    said: list[str] = []
    seconds, distinct, memory, difference = learner.measure(said.append, layers=1, turns=1)
    assert len(said) == 3 and seconds.value > 0 and seconds.other is not None
    assert distinct.value == 100 and distinct.other is not None and distinct.other < 25
    assert memory.value > 0 and 0 < difference.value < 1e-5
