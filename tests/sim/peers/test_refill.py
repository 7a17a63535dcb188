"""Batches that are filled by signal (`run.batch.refill`): flat groups make room, and none is lost."""

from __future__ import annotations

from collections import Counter
from functools import cache

import pytest
from role_swarms import EPOCH, Told, scenario

from swarm.core.group_accounts import audit
from swarm.events import Counted, Dropped, Judged, Sampled, Trained
from swarm.settings.config import Averaging, BatchSize, Optimizer, TaskSettings
from swarm.types import Verdict

EASY = (1, 2)
"""Letters, alphabet. Half of all completions are right: one group of eight is flat at the start, and soon
most are."""
IMPOSSIBLE = (1, 26)
"""One group of seven is not flat, and the policy hardly gets better."""


@cache
def played(refill: str, of: tuple[int, int] = EASY, mode: str = "butterfly") -> Told:
    size = BatchSize(groups=8, close_after=3.0, refill=refill)  # type: ignore[arg-type]
    averaging = Averaging(mode=mode, local_steps=2, match=2.0, deadline=6.0, chunk=3.0)  # type: ignore[arg-type]
    task = TaskSettings(name="toy", options=dict(zip(("letters", "alphabet"), of, strict=True)))
    fast = Optimizer(lr=0.5)
    return Told(scenario(0.5, (2, 4), task=task, batch=size, averaging=averaging, optimizer=fast, sample=0.5))


def flat_in_batches(told: Told) -> float:
    """Share of the groups that were trained on whose completions have equal rewards, by their mean alone: a
    letter is right or wrong."""
    rewards = {event.group: event.reward for event in told.of(Sampled)}
    out = {group for event in told.of(Dropped) for group in event.groups}
    admitted = [e.group for e in told.of(Judged) if e.verdict is Verdict.ADMIT and e.group not in out]
    return sum(rewards[group] in (0.0, 1.0) for group in admitted) / len(admitted)


@pytest.mark.parametrize("mode", ["butterfly", "sites"])
def test_batches_are_of_groups_that_teach(mode: str) -> None:
    assert flat_in_batches(played("off", mode=mode)) > 0.3
    assert (
        flat_in_batches(played("signal", mode=mode)) < 0.1 < 0.4 * flat_in_batches(played("off", mode=mode))
    )


@pytest.mark.parametrize("mode", ["butterfly", "sites"])
def test_every_group_that_made_room_is_accounted_for(mode: str) -> None:
    told = played("signal", mode=mode)
    account = audit(told.all)
    assert account.passed and account.refused["flat"] == sum(
        len(event.groups) for event in told.of(Dropped) if event.why == "flat"
    )
    tokens = sum((Counter(event.tokens) for event in told.of(Counted)), Counter[str]())
    assert tokens["flat"] > 0 and not any(event.why == "flat" for event in played("off").of(Dropped))


@pytest.mark.parametrize("mode", ["butterfly", "sites"])
def test_the_reported_reward_is_that_of_all_groups_that_came(mode: str) -> None:
    """Not of those that differ: theirs says how hard the chosen prompts are, and not how good the policy
    is."""
    told = played("signal", mode=mode)
    before, *steps = told.of(Trained)[-7:]
    last = [event.metrics for event in steps]
    times = {"since": before.at - EPOCH, "until": steps[-1].at - EPOCH}
    sampled = [event.reward for event in told.of(Sampled, **times)]
    mean = sum(metrics["reward"] for metrics in last) / len(last)
    assert mean == pytest.approx(sum(sampled) / len(sampled), abs=0.1)
    assert sum(metrics["flat"] for metrics in last) / len(last) > 0.3


def test_a_run_in_which_no_group_teaches_goes_on_at_a_fifth_of_its_pace() -> None:
    off, on = (
        len({e.version for e in played(refill, IMPOSSIBLE).of(Trained)}) for refill in ("off", "signal")
    )
    assert 0.1 * off < on < 0.5 * off
