"""The paper's setting with the roles that ship: 200 samplers, 4 learners, log-normal delays up to 1800 s, 24
virtual hours."""

from __future__ import annotations

import msgspec
import pytest
from places import ROOT

from peers.commands import sim
from swarm.events import Trained
from swarm.protocol import Role
from swarm.sim import report, scenario
from swarm.sim.world import SimulationOutcome, World

FILE = ROOT / "configs" / "scenarios" / "paper-delay.toml"


def day() -> tuple[SimulationOutcome, report.Summary, list[Trained]]:
    summary, steps = report.Summary(), []
    outcome = World(
        scenario.load(FILE),
        sim.spawn,
        sinks=[summary, lambda e: steps.append(e) if isinstance(e, Trained) else None],
    ).run()
    return outcome, summary, steps


def test_a_peers_hour_costs_a_bounded_number_of_callbacks() -> None:
    scene = scenario.load(FILE)
    peers = scene.peers | {Role.SAMPLER: 40}
    scene = msgspec.structs.replace(scene, hours=0.25, peers=peers)
    assert World(scene, sim.spawn).run().calls < 1610 * scene.hours * sum(peers.values())


@pytest.mark.nightly
@pytest.mark.timeout(900)
def test_a_day_of_two_hundred_samplers_learns_and_is_the_same_twice() -> None:
    first, summary, steps = day()
    assert first.virtual == 24 * 3600
    assert summary.version > 400
    assert sum(step.members == 4 for step in steps) > 0.9 * len(steps), "rounds are common ones"
    assert max(step.metrics["lag_seconds"] for step in steps) > 600, "the delays are there"
    early, late = ([step.metrics["reward"] for step in part] for part in (steps[:20], steps[-20:]))
    assert sum(late) / len(late) > sum(early) / len(early) + 0.3
    assert day()[0].sha256 == first.sha256
