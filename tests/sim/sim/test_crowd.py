"""A crowd of samplers: all of them together say no more than a few, and silence is judged by each one's
pace."""

from __future__ import annotations

import msgspec
import pytest
from places import ROOT

from peers.commands import sim
from swarm.core import beat_pace
from swarm.events import Event, Heard, Lost, Transferred
from swarm.protocol import Role
from swarm.sim.scenario import Fault, load, role_of
from swarm.sim.world import World

QUICK = load(ROOT / "configs" / "scenarios" / "quick.toml")
SECONDS, CRASH, SETTLED = 120.0, 50.0, 20.0
SAMPLERS, CROWD, PACE = 12, 4, QUICK.run.pace


def test_a_seed_hears_no_more_of_many_samplers_than_of_a_few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(beat_pace, "CROWD", CROWD)
    scene = msgspec.structs.replace(
        QUICK,
        hours=SECONDS / 3600,
        peers={Role.SEED: 1, Role.SAMPLER: SAMPLERS},
        faults=(Fault(at=CRASH, fault="crash", peer="sampler-1"),),
    )
    events: list[Event] = []
    World(scene, sim.spawn, sinks=[events.append]).run()
    settled = [event for event in events if event.at > events[0].at + SETTLED]
    told = [event for event in settled if isinstance(event, Heard) and role_of(event.subject) is Role.SAMPLER]
    assert len(told) <= (SECONDS - SETTLED) / PACE.beat * CROWD
    slower = {event.beat.slower for event in told}
    assert slower == {SAMPLERS / CROWD, (SAMPLERS - 1) / CROWD}, "each says by how much"
    reports = [event for event in settled if isinstance(event, Transferred) and event.peer == "sampler-0"]
    assert 0 < len(reports) <= (SECONDS - SETTLED) / (5 * PACE.beat * min(slower)) + 1
    ((lost, silent),) = [(event.subject, event.silent) for event in events if isinstance(event, Lost)]
    patience = PACE.patience * SAMPLERS / CROWD
    assert lost == "sampler-1" and patience < silent < patience + 0.2, "and is missed as much later"
