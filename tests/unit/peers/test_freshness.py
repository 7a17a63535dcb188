"""Which groups a sampler sends first, and which no more."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
from nouns import group, release

from peers.sampler.freshness import Freshness
from swarm.settings.config import Config, Run, Window

NOW, NEWEST = 10_000.0, 20


@pytest.mark.parametrize(
    ("versions", "seconds", "urgent", "late"),
    [
        (0, 5000.0, False, False),
        (4, 50.0, False, False),
        (5, 50.0, True, False),
        (8, 50.0, True, False),
        (9, 50.0, True, True),
        (1, 100.0, False, False),
        (1, 101.0, True, False),
        (1, 201.0, True, True),
    ],
)
def test_a_group_is_urgent_beyond_half_of_its_window_and_late_beyond_all_of_it(
    versions: int, seconds: float, urgent: bool, late: bool
) -> None:
    policy = release(version=NEWEST - versions, released=NOW - seconds)
    releases = SimpleNamespace(
        held=release(version=NEWEST),
        known=lambda version, weights: [policy],
        released_here=lambda one: one.released,
    )
    config = Config(run=Run(window=Window(versions=8, seconds=200.0)))
    freshness = Freshness(cast(Any, SimpleNamespace(config=config, releases=releases, now=lambda: NOW)))
    mine = group(version=policy.version)
    assert (freshness.is_urgent(mine), freshness.is_late(mine)) == (urgent, late)
    assert freshness.is_over(policy) is late
