"""The row `swarms`: what it counts as useful."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from lab.figures.table import Unmeasured
from lab.rows import swarms
from swarm.events import Trained
from swarm.protocol import Role
from swarm.sim.scenario import Scenario, load
from swarm.types import PeerId

SCENARIOS = Path(__file__).parents[2] / "configs" / "scenarios"


def scene(**fields: object) -> Scenario:
    return msgspec.structs.replace(load(SCENARIOS / "one-home.toml"), **fields)


@pytest.mark.slow
def test_a_learner_that_waits_for_groups_is_of_less_use() -> None:
    prices, run = scene().prices, scene().run
    slow = prices | {"sample": msgspec.structs.replace(prices["sample"], seconds=30.0)}
    run = msgspec.structs.replace(run, batch=msgspec.structs.replace(run.batch, close_after=300.0))
    useful, less = (
        swarms.played(scene(hours=0.15, prices=each, run=run, lines={})) for each in (prices, slow)
    )
    assert 0.8 < useful.share <= 1.0 and less.share < 0.7
    assert less.versions < useful.versions
    assert "groups trained" in useful.text()


def test_a_learner_that_ends_a_round_later_than_another_counts_no_round_of_before() -> None:
    useful = swarms.Useful(scene(peers={Role.LEARNER: 2}))
    for version in (1, 2, 3):
        for late in (0.0, 1.0):
            useful(
                Trained(
                    at=100.0 * version + late,
                    peer=PeerId(f"learner-{late:.0f}"),
                    version=version,
                    groups=1,
                    members=2,
                    metrics={},
                    gather=0.0,
                    learn=90.0,
                    average=9.0,
                    step=1.0,
                )
            )
    assert 0.9 < useful.share < 0.91 and 0.99 < useful.versions / 36 < 1.0


def test_a_swarm_without_two_versions_is_not_measured() -> None:
    with pytest.raises(Unmeasured, match="one-home"):
        swarms.played(scene(hours=0.01))


@pytest.mark.slow
def test_a_narrow_line_is_beside_one_without_an_end() -> None:
    share, versions = swarms.measure(lambda _: None, ["two-homes"], hours=0.3)
    assert share.value < share.other and versions.value < versions.other
