"""What strangers say is in their own rows alone: no figure and no line about the swarm follows from it."""

from __future__ import annotations

import asyncio
from random import Random

import msgspec
import pytest
from dashboard_story import LEARNERS, SAMPLERS, heard, story, who
from still_host import membership, still_host

from dashboard.diagnosis import diagnose
from dashboard.diagnosis.condition import condition
from dashboard.fold.bounds import BOUNDS, Bounds
from dashboard.fold.folds import fold
from dashboard.fold.peer import LONGEST
from dashboard.fold.state import SwarmState
from dashboard.serve.state_view import head_of
from peers.runtime.bundles import REPORTERS
from swarm import events as happened
from swarm.limits import EVENT_LIMIT
from swarm.net.memory.network import MemoryNetwork
from swarm.protocol import Role
from swarm.settings.config import DelayLaw, Pace, Run
from swarm.sim.clock import run
from swarm.sim.links import SimLinks
from swarm.types import Lag, PeerId

START = 1_750_000_000.0
STRANGERS = tuple(PeerId(who(number)) for number in range(100, 150))


def told(bounds: Bounds = BOUNDS) -> SwarmState:
    state = SwarmState(bounds=bounds)
    for event in story(30, START):
        fold(state, event)
    return state


def invade(state: SwarmState, at: float) -> None:
    """Strangers claim what a heartbeat can say, and that a part of each is broken."""
    for stranger in STRANGERS:
        event = heard(stranger, 2**40, at, role=Role.SAMPLER)
        loud = msgspec.structs.replace(event.beat, tokens=2.5e18, rate=1e9, busy=1.0)
        fold(state, msgspec.structs.replace(event, beat=loud, invited=False))
        fold(state, happened.Faulted(at=at, peer=stranger, part="p2pd", detail="all is lost"))


def test_a_crowd_of_strangers_changes_nothing_but_how_many_they_are() -> None:
    quiet, loud = told(), told()
    at = quiet.last + 0.1
    before = head_of(quiet, at)
    invade(loud, at)
    assert head_of(loud, at) == msgspec.structs.replace(before, strangers=len(STRANGERS))
    assert before.tokens_per_second == sum(quiet.peers[learner].tokens for learner in LEARNERS)
    assert condition(loud, at, diagnose(loud, at)) == condition(quiet, at, diagnose(quiet, at))
    assert not [one for one in diagnose(loud, at) if one.level != "info" and one not in diagnose(quiet, at)]
    assert len(loud.heat.view().rows) == len(quiet.heat.view().rows)
    assert loud.release_views(at)[-1] == quiet.release_views(at)[-1]


def test_before_the_first_release_no_strangers_version_is_the_newest() -> None:
    state = SwarmState()
    invade(state, START)
    assert state.version == 0 and not state.begun


def test_rows_of_strangers_give_way_before_those_of_members() -> None:
    state = told(Bounds(peers=20))
    invade(state, state.last + 0.1)
    assert {*LEARNERS, SAMPLERS[0]} <= state.peers.keys() and len(state.peers) == 20


def test_a_claimed_delay_is_clipped() -> None:
    state, event = SwarmState(), heard(SAMPLERS[0], 1, START)
    loud = msgspec.structs.replace(event.beat, lag=Lag(generation=1e18, upload=2.0))
    fold(state, msgspec.structs.replace(event, beat=loud))
    row = state.row(SAMPLERS[0], START)
    assert row is not None and row.claims.causes.generation == LONGEST and row.claims.causes.upload == 2.0


def member(number: int, at: float) -> happened.Heard:
    return heard(PeerId(who(number)), 30, at, role=Role.SAMPLER, seq=int(at))


def test_a_new_member_finds_a_place_in_a_full_table_of_those_that_left_and_is_here_once() -> None:
    state = SwarmState(bounds=Bounds(peers=8))
    for number in range(200, 208):
        fold(state, member(number, 10.0))
        if number > 200:
            fold(state, happened.Left(at=10.0, peer=PeerId(who(number)), name="", reason="done"))
    for at in range(20, 25):
        fold(state, member(209, float(at)))
    assert {who(200), who(209)} <= state.peers.keys() and len(state.peers) == 8, "who left gives way first"
    assert [line.count for line in state.events(peer=who(209))] == [1]


def test_a_full_table_drops_the_member_silent_for_longest_and_no_stranger_displaces_one() -> None:
    state = SwarmState(Run(pace=Pace(beat=1.0, patience=5.0)), Bounds(peers=8))
    for number in range(200, 209):
        fold(state, member(number, float(number)))
    assert state.peers.keys() == {who(number) for number in range(201, 209)}
    fold(state, happened.Left(at=209.0, peer=PeerId(who(205)), name="", reason="done"))
    invade(state, 210.0)
    started = happened.Started(
        at=211.0, peer=STRANGERS[0], name="", role=Role.SAMPLER, version=1, hardware=""
    )
    fold(state, started)
    assert state.peers.keys() == {who(number) for number in range(201, 209)}
    assert not state.events(peer=STRANGERS[0])[1:], "only what its part does is told"


def test_a_table_of_peers_that_are_all_here_stays_as_it_is_and_has_a_place_for_each_learner() -> None:
    state = SwarmState(bounds=Bounds(peers=8))
    for at in range(10, 30, 2):
        for number in range(200, 216):
            fold(state, member(number, float(at)))
    assert state.peers.keys() == {who(number) for number in range(200, 208)}
    assert len(state.events()) == 8 and not state.gone(1), "nobody came and went"
    for at in (30.0, 32.0):
        fold(state, heard(LEARNERS[0], 30, at, seq=int(at)))
        for number in range(200, 216):
            fold(state, member(number, at))
    assert LEARNERS[0] in state.peers and len(state.peers) == 8 and len(state.gone(1)) == 1


def test_a_stranger_counts_once_learners_took_a_group_of_it() -> None:
    state = told()
    invade(state, state.last + 0.1)
    ones = {str(STRANGERS[0]): {"admit": 1}}
    fold(
        state,
        happened.Counted(
            at=state.last, peer=LEARNERS[0], verdicts={"admit": 1}, versions={}, seconds={}, samplers=ones
        ),
    )
    assert head_of(state, state.last).strangers == len(STRANGERS) - 1
    assert state.counts(STRANGERS[0]) and not state.counts(STRANGERS[1])


SECONDS = {"gather": 0.0, "learn": 0.0, "average": 0.0, "step": 0.0}
TRAINED = {"version": 1, "groups": 10**9, "members": 1, "metrics": {"reward": 1.0}, **SECONDS}
CLAIMS: dict[str, tuple[type[happened.Event], dict[str, object]]] = {
    "a step": (happened.Trained, TRAINED),
    "a round": (happened.Averaged, {"version": 1, "members": (), "seconds": 1.0}),
    "verdicts": (happened.Counted, {"verdicts": {"admit": 9}, "versions": {}, "seconds": {}, "samplers": {}}),
    "being a learner": (happened.Started, {"name": "x", "role": Role.LEARNER, "version": 1, "hardware": ""}),
    "an evaluation": (happened.Evaluated, {"version": 1, "accuracy": 1.0, "tasks": 1}),
}


@pytest.mark.parametrize("claim", CLAIMS)
def test_what_members_report_is_heard_of_members_alone(claim: str) -> None:
    kind, fields = CLAIMS[claim]

    async def scene() -> None:
        seen, bus = list[happened.Event](), happened.Bus()
        bus.add(seen.append)
        role = Role.EVALUATOR if kind is happened.Evaluated else Role.LEARNER
        async with MemoryNetwork(Random(1), SimLinks(DelayLaw(), 1e6, Random(1))) as network:
            window = still_host(network, "window", Role.OBSERVER, bus=bus)
            for name, member in (("stranger", None), ("member", membership("member", role))):
                sender = still_host(network, name, role, membership=member)
                event = kind(at=START, peer=PeerId(name), **fields)
                frame = sender.seal([event], EVENT_LIMIT)
                window.take(window.bundles.receive, "event", PeerId(name), frame)
            await asyncio.sleep(0)
        assert [event.peer for event in seen if type(event) is kind] == ["member"]
        (refused,) = (event for event in seen if isinstance(event, happened.Rejected))
        assert refused.sender == "stranger" and "no membership" in refused.reason

    run(scene())


def test_only_what_anybody_may_report_is_left_to_strangers() -> None:
    open_to_all = {
        happened.Started,
        happened.Left,
        happened.Adopted,
        happened.Transferred,
        happened.Faulted,
        happened.Recovered,
    }
    assert set(happened.GOSSIPED) == open_to_all | set(REPORTERS)
