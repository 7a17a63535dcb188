"""Learners that learn ahead compute all the time: nothing that is sampled is lost by it."""

from __future__ import annotations

from collections import defaultdict

import pytest

from lab.rows.simulated import busy
from peers.commands import sim
from peers.learner import next_gradient
from swarm.events import Event, Trained
from swarm.sim.world import World


def late() -> list[float]:
    """Seconds from the first to the last step of each version that all four learners step to."""
    stepped = defaultdict[int, list[float]](list)

    def take(event: Event) -> None:
        if isinstance(event, Trained):
            stepped[event.version].append(event.at)

    World(busy.scene(True, False, 1.25), sim.spawn, sinks=[take]).run()
    return [max(times) - min(times) for times in stepped.values() if len(times) == 4]


def test_who_begins_later_than_the_others_is_in_step_with_them_after_a_round(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A gradient takes 8 s. Two of the four begin later than the others, after version 1: with batches of one
    size they would be 5 s late in each version."""
    in_step = late()
    monkeypatch.setattr(next_gradient, "fewer", lambda *_: 0)
    of_one_size = late()
    assert len(in_step) > 3 and len(of_one_size) > 3 and min(of_one_size) > 5.0
    assert max(in_step) < min(of_one_size) / 2


def test_a_trace_kills_a_peer_each_minute_which_comes_back_after_half_of_it() -> None:
    script = busy.trace(5.0)
    assert [fault.at for fault in script] == [60, 120, 180] and {fault.down for fault in script} == {30}
    assert [fault.peer.split("-")[0] for fault in script] == ["learner", "sampler", "learner"]
