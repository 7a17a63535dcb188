"""The roles that ship, on the ports of memory, in virtual time: what a swarm does on a good day and on bad
ones."""

from __future__ import annotations

from role_swarms import Told, scenario

from peers.commands import sim
from swarm.events import Adopted, Trained
from swarm.settings.config import BatchSize, Delay, DelayLaw, Pace, Window
from swarm.sim.scenario import Fault
from swarm.sim.world import World


def test_a_swarm_that_was_cut_in_two_ends_at_one_release() -> None:
    sides = (("learner-0", "sampler-0"), ("learner-1", "sampler-1", "sampler-2", "seed-0"))
    faults = [Fault(at=40, fault="partition", between=sides), Fault(at=80, fault="repair", between=sides)]
    told = Told(scenario(2.5, (2, 3), *faults))
    apart = told.of(Trained, since=55, until=80)
    assert {event.peer for event in apart} == {"learner-0", "learner-1"} and {
        event.members for event in apart
    } == {1}
    late = told.of(Trained, since=110)
    assert late and [event for event in late if event.members == 2]
    by_version: dict[int, set[str]] = {}
    for event in told.of(Adopted, since=110):
        by_version.setdefault(event.version, set()).add(event.weights)
    assert by_version and all(len(digests) == 1 for digests in by_version.values())


def test_the_papers_delays_scaled_down_give_the_same_journal_twice() -> None:
    law = DelayLaw(law="lognormal", seconds=60.0, shape=0.617, longest=300.0)
    paper = scenario(
        60.0,
        (2, 20),
        delay=Delay(policy=law),
        sample=60.0,
        window=Window(versions=64, seconds=600.0),
        batch=BatchSize(groups=16, close_after=30.0),
        pace=Pace(beat=60.0, patience=200.0),
    )
    first, second = (World(paper, sim.spawn).run() for _ in range(2))
    assert first.sha256 == second.sha256 and first.events > 500
