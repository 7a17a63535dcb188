"""Intervals of shares hold what they say, and say when a run is complete."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarm.core import completion, intervals
from swarm.settings.config import Evaluation, Run, Stop


@pytest.mark.parametrize(
    ("right", "tasks", "low", "high"),
    [(81, 263, 0.2553, 0.3662), (15, 148, 0.0624, 0.1605), (0, 20, 0.0, 0.1611), (1, 29, 0.0061, 0.1718)],
)
def test_wilsons_interval_is_that_of_the_literature(right: int, tasks: int, low: float, high: float) -> None:
    """Newcombe's examples (Statistics in Medicine 1998, table I, method 3)."""
    assert intervals.of_share(right / tasks, tasks) == pytest.approx((low, high), abs=1e-4)


@given(st.integers(1, 4000).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
def test_an_interval_holds_its_share_and_narrows_with_more_tasks(counts: tuple[int, int]) -> None:
    right, tasks = counts
    low, high = intervals.of_share(right / tasks, tasks)
    assert 0.0 <= low <= right / tasks <= high <= 1.0
    closer, farther = intervals.of_share(right / tasks, 4 * tasks)
    assert farther - closer < high - low


def test_19_of_20_intervals_hold_the_share_that_the_tasks_were_drawn_from() -> None:
    rng, held = random.Random(1), 0
    for _ in range(2000):
        share = rng.uniform(0.05, 0.95)
        low, high = intervals.of_share(sum(rng.random() < share for _ in range(64)) / 64, 64)
        held += low <= share <= high
    assert 0.93 < held / 2000 < 0.97


@pytest.mark.parametrize(
    ("stop", "tasks", "said"),
    [
        (Stop(), 256, ""),
        (Stop(versions=400), 256, "at version 400"),
        (
            Stop(versions=400, accuracy=0.9),
            256,
            "at version 400, or once 240 of 256 held-out answers are right (0.9 with 95 % confidence)",
        ),
        (Stop(accuracy=0.9), 16, "once 16 of 16 held-out answers are right (0.9 with 95 % confidence)"),
        (Stop(accuracy=0.5), 1024, "once 544 of 1024 held-out answers are right (0.5 with 95 % confidence)"),
    ],
)
def test_a_sentence_says_when_a_run_is_complete(stop: Stop, tasks: int, said: str) -> None:
    run = Run(stop=stop, evaluation=Evaluation(tasks=tasks))
    assert completion.ends(run) == said
    for right in range(tasks + 1):
        if completion.is_complete(run, 0, [(right / tasks, tasks)]):
            assert f"once {right} of" in said
            break
    else:
        assert "once" not in said
