"""Whose means leave gradients out: found by what is left of one's own."""

from __future__ import annotations

import pytest

from swarm.core.gradient_checks.clipping import Agreement
from swarm.core.gradient_checks.opposition import LEAST, Opposition
from swarm.core.gradient_checks.reducer_checks import HALF, MOST, presence


def of(times: float, noise: float = 0.0) -> float:
    """A part of norm 3 that is in the mean `times` its weight of a quarter."""
    return presence(Agreement(both=times * 0.25 * 9 + noise, mine=9.0, others=1.0), 0.25)


def test_a_part_with_its_weight_in_the_mean_is_present() -> None:
    assert of(1) == pytest.approx(1 - HALF) and of(0) == -HALF and of(-1) == -MOST
    assert of(100) == MOST and presence(Agreement(1.0, 0.0, 1.0), 0.25) == 0


@pytest.mark.parametrize("false", [0.0, -1.0, 0.2])
def test_a_reducer_whose_means_leave_mine_out_is_doubted_and_noise_is_not(false: float) -> None:
    presences, members = Opposition(), ["me", "a", "b", "c"]
    for k in range(LEAST):
        noise = (1 + k % 3) * (-1) ** k
        presences.add({"me": of(1), "a": of(1, noise), "b": of(false), "c": of(0.9)})
        assert presences.against(members) == (["b"] if k == LEAST - 1 else [])


def test_where_most_means_leave_mine_out_nobody_is_doubted() -> None:
    presences, members = Opposition(), ["me", "a", "b", "c"]
    for _ in range(2 * LEAST):
        presences.add({"me": of(0), "a": of(0), "b": of(0.1), "c": of(1)})
    assert presences.against(members) == ()
