"""The row `ragged`: what it counts is what the engine does."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from lab.rows.ragged import PROMPT, continuous, in_turn


def test_a_call_has_as_many_forwards_as_its_longest_completion_has_tokens() -> None:
    lengths = np.array([[3, 1], [2, 2], [1, 1]])
    assert in_turn(lengths, 1) == (10, 3 + 2 + 1, 2 * PROMPT + 2)
    assert in_turn(lengths, 3) == (10, 3, 6 * PROMPT)


def test_the_next_prompts_enter_where_completions_have_ended() -> None:
    lengths = np.array([[4, 4], [1, 1], [2, 2], [1, 1]])
    assert in_turn(lengths, 2).forwards == 4 + 2
    # of the first group a prefill and three forwards; two prefills beside it, of the third and of the fourth
    assert continuous(lengths, 2) == (16, 4 + 2, 4 * (PROMPT + 3))
    assert continuous(lengths, 4) == in_turn(lengths, 4)


@pytest.mark.slow
def test_an_engine_has_the_forwards_that_are_counted(tmp_path: Path) -> None:
    from lab.processes.ragged_calls import Sides
    from swarm.learn.models import tiny

    told = Sides(tiny.make(tmp_path / "llama", "llama"), 4, 40, 4).turn(2, 0)
    lengths = np.array(told["lengths"])
    assert told["forwards"] == in_turn(lengths, 2).forwards and lengths.max() <= 40 < lengths.sum() / 4
