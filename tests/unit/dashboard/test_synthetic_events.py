"""The made-up swarm that benches play: it repeats itself, keeps its time, looks like a real one, and breaks
on demand."""

from __future__ import annotations

from itertools import islice, pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from synthetic_events import BEHIND, Fault, swarm_events

from dashboard.diagnosis import diagnose
from dashboard.fold.folds import fold
from dashboard.fold.state import SwarmState
from swarm import events
from swarm.journal import from_line, to_line
from swarm.protocol import Role

START = 1e9


@given(
    peers=st.integers(1, 40),
    seed=st.integers(0, 1000),
    kind=st.sampled_from([None, "learner", "stale", "hostile"]),
)
@settings(max_examples=20, deadline=None)
def test_the_same_arguments_give_the_same_events_in_the_order_of_their_time(
    peers: int, seed: int, kind: object
) -> None:
    fault = Fault(kind, START + 10) if kind else None  # type: ignore[arg-type]
    told = list(swarm_events(peers, 30.0, START, seed, fault))
    assert told == list(swarm_events(peers, 30.0, START, seed, fault))
    assert all(before.at <= after.at for before, after in pairwise(told))
    assert told[0].at >= START and told[-1].at < START + 30.0


def test_a_made_up_event_is_one_that_a_journal_holds() -> None:
    for event in swarm_events(20, 60.0, START, fault=Fault("hostile", START + 20)):
        assert from_line(to_line(event)) == event


def test_it_has_all_that_a_page_shows() -> None:
    told = {type(event) for event in swarm_events(30, 300.0, START)}
    assert told >= {
        events.Started,
        events.Left,
        events.Heard,
        events.Counted,
        events.Shown,
        events.Moved,
        events.Averaged,
        events.Trained,
        events.Released,
        events.Adopted,
        events.Evaluated,
        events.Transferred,
    }


def test_it_goes_on_for_as_long_as_it_is_asked() -> None:
    assert len(list(islice(swarm_events(5, float("inf"), START), 20_000))) == 20_000


def test_a_healthy_one_has_nothing_wrong() -> None:
    state = folded(seconds=300.0)
    assert diagnose(state, state.last) == ()


@pytest.mark.parametrize("kind", ["learner", "stale"])
def test_a_broken_one_is_told_from_a_healthy_one(kind: str) -> None:
    state = folded(seconds=330.0, fault=Fault(kind, START + 300.0))  # type: ignore[arg-type]
    assert diagnose(state, state.last)


def test_a_stale_sampler_says_so_in_its_heartbeats() -> None:
    told = [
        event
        for event in swarm_events(8, 330.0, START, fault=Fault("stale", START + 300.0))
        if isinstance(event, events.Heard)
    ]
    samplers = [event for event in told if event.at > START + 301 and event.beat.role is Role.SAMPLER]
    newest = max(event.beat.version for event in told)
    late = {event.subject for event in samplers if event.beat.version <= newest - BEHIND}
    assert len(late) == 1


def folded(seconds: float, fault: Fault | None = None) -> SwarmState:
    state = SwarmState()
    for event in swarm_events(12, seconds, START, fault=fault):
        fold(state, event)
    return state
