"""Intervals of shares hold what they say, and say when a run is complete."""

from __future__ import annotations

import itertools
import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarm.core import completion, intervals
from swarm.settings.config import Evaluation, Run, Stop
from swarm.types import Estimate


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


def ends(one: Estimate) -> tuple[float, float]:
    return one.low, one.high


@pytest.mark.parametrize("k", [1, 2, 5, 8])
def test_pass_at_k_is_the_share_of_all_choices_of_k_samples_that_have_a_right_one(k: int) -> None:
    for right in range(9):
        drawn = [*itertools.combinations([1] * right + [0] * (8 - right), k)]
        assert intervals.pass_at(k, right, 8) == pytest.approx(sum(map(any, drawn)) / len(drawn))


def test_estimates_of_samples_are_the_mean_and_pass_at_powers_of_two_and_all() -> None:
    found = intervals.sampled([0, 3, 6, 6], 6)
    assert [*found] == ["mean@6", "pass@2", "pass@4", "pass@6"]
    assert [round(one.value, 4) for one in found.values()] == [0.625, 0.7, 0.75, 0.75]
    assert [*intervals.sampled([1, 0], 1)] == ["mean@1"] and intervals.sampled([], 8) == {}
    assert ends(intervals.sampled([1, 0, 0], 1)["mean@1"]) == pytest.approx(intervals.of_share(1 / 3, 3))
    assert ends(intervals.sampled([8] * 20, 8)["mean@8"]) == intervals.of_share(1.0, 20), "no zero width"


@pytest.mark.parametrize("alike", [0.1, 0.5, 4.0])
def test_19_of_20_intervals_of_sampled_tasks_hold_the_mean_of_all_tasks(alike: float) -> None:
    """`alike`: tasks are nearly all solved or hopeless, or all of them half solved."""
    rng, held, width = random.Random(2), 0, 0.0
    for _ in range(1000):
        chances = [rng.betavariate(alike, alike) for _ in range(64)]
        right = [sum(rng.random() < chance for _ in range(8)) for chance in chances]
        low, high = ends(intervals.sampled(right, 8)["mean@8"])
        held, width = held + (low <= 0.5 <= high), width + (high - low) / 1000
    assert 0.92 < held / 1000 < 0.975
    assert width < 1.05 * (2 * 1.96 * math.sqrt((1 / (2 * alike + 1) + 1 / 8) / 4 / 64))


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
