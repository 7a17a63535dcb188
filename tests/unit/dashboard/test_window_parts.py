"""The parts of a state, one by one: the map of lags, the spread of releases, flows, rounds, groups, the event
list."""

from __future__ import annotations

import pytest
from dashboard_happenings import folded
from dashboard_story import LEARNERS, SAMPLERS, SEED, digest, heard, released, who
from hypothesis import given, settings
from hypothesis import strategies as st

from dashboard.fold.folds import fold
from dashboard.fold.parts.flows import MOST
from dashboard.fold.parts.heat import Heat
from dashboard.fold.parts.samples import COMPLETION
from dashboard.fold.parts.series import Series
from dashboard.serve.state_view import view_of
from dashboard.views import FlowView
from swarm import events as happened
from swarm.types import Link, PeerId


@settings(deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from("ab"), st.integers(0, 99), st.floats(0, 3e5)), min_size=1, max_size=60
    ),
    st.integers(2, 9),
)
def test_the_map_of_lags_keeps_the_largest_of_each_slot(
    told: list[tuple[str, int, float]], columns: int
) -> None:
    told.sort(key=lambda entry: entry[2])
    heat = Heat(columns)
    for peer, lag, at in told:
        heat.take(peer, lag, at)
    view = heat.view()
    assert view.columns <= columns and view.slot in {5.0 * 2**power for power in range(20)}
    expected: dict[tuple[str, int], int] = {}
    for peer, lag, at in told:
        place = peer, int((at - view.start) / view.slot)
        expected[place] = max(expected.get(place, 0), lag)
    shown = {
        (peer, column): lag
        for peer, row in view.rows.items()
        for column, lag in enumerate(row)
        if lag is not None
    }
    assert shown == expected


def adopted(peer: PeerId, version: int, at: float, age: float) -> happened.Adopted:
    return happened.Adopted(
        at=at, peer=peer, version=version, weights=digest(version), fetch=0.1, load=0.1, age=age
    )


def test_a_releases_spread_is_timed_by_adoptions_and_heartbeats() -> None:
    first, second, third = SAMPLERS
    state = folded(
        *(heard(peer, 1, 1000.0) for peer in (*SAMPLERS, LEARNERS[0])),
        happened.Released(at=1000.0, peer=SEED, release=released(1, 1000.0, LEARNERS[0])),
        happened.Released(at=1010.0, peer=SEED, release=released(2, 1010.0, LEARNERS[0])),
        adopted(first, 2, 1011.5, age=1.25),
        heard(second, 2, 1013.0, seq=2),
    )
    newest = state.release_views(1010.0)[-1]
    assert (newest.first, newest.median, newest.last) == (
        1.25,
        1.25,
        3.0,
    ), "an adoption and a heartbeat; not the publisher"
    assert (newest.have, newest.of) == (2, 4), "the publisher's heartbeat still has version 1"
    fold(state, happened.Released(at=1020.0, peer=SEED, release=released(3, 1020.0, LEARNERS[0])))
    fold(state, heard(third, 3, 1024.0, seq=2))
    before, newest = state.release_views(1024.0)[-2:]
    assert before.last == 14.0 and newest.last == 4.0, "whoever jumps over a version has it from then on"


def test_a_peer_that_is_first_seen_at_a_version_is_not_timed() -> None:
    state = folded(
        happened.Released(at=1000.0, peer=SEED, release=released(1, 10.0, LEARNERS[0])),
        heard(SAMPLERS[0], 1, 1000.0),
    )
    (release,) = state.release_views(1000.0)
    assert release.have == 1 and release.first is release.last is None


def test_a_step_that_overtakes_its_release_counts_from_the_step() -> None:
    state = folded(
        *(heard(learner, 1, 1000.0) for learner in LEARNERS),
        happened.Released(at=1000.0, peer=SEED, release=released(1, 1000.0)),
        happened.CaughtUp(at=1004.0, peer=LEARNERS[1], version=2, behind=1),
        happened.Released(at=1009.0, peer=SEED, release=released(2, 1003.0)),
    )
    assert state.release_views(1009.0)[-1].last == 1.0


def transferred(
    at: float, target: PeerId, received: dict[PeerId, int], rtt: float = 0.0, seconds: float = 2.0
) -> happened.Event:
    links = {
        str(source): Link(received={"weights": size}, rtt=rtt, relayed=False)
        for source, size in received.items()
    }
    total = {"weights": sum(received.values()), "gossip": 7}
    return happened.Transferred(
        at=at, peer=target, seconds=seconds, sent={"weights": 10**9}, received=total, links=links
    )


def test_bytes_are_counted_by_whoever_received_them_and_decay_when_no_more_is_told() -> None:
    beats = (heard(SEED, 0, 1000.0), heard(SAMPLERS[0], 0, 1000.0))
    state = folded(*beats, transferred(1000.0, SAMPLERS[0], {SEED: 4000}))
    flow = FlowView(source=SEED, target=SAMPLERS[0], purpose="weights", rate=2000.0, relayed=False)
    assert state.flows.view(1006.0) == (flow,) and state.flows.view(1006.1) == ()
    assert (
        state.flows.traffic(1006.0).rate == {"weights": 2000.0, "gossip": 3.5}
        and state.flows.traffic(1007.0).rate == {}
    )
    assert state.flows.traffic(1007.0).total == {"weights": 4000.0, "gossip": 7.0}


def test_the_largest_flows_are_kept() -> None:
    state = folded(heard(SEED, 0, 1000.0))
    for number in range(3 * MOST):
        fold(state, heard(PeerId(f"peer{number}"), 0, 1000.0))
        fold(state, transferred(1000.0, PeerId(f"peer{number}"), {SEED: 1000 + number}))
    rates = [flow.rate for flow in state.flows.view(1000.0)]
    assert rates == [(1000 + number) / 2 for number in reversed(range(2 * MOST, 3 * MOST))]


def test_learners_that_average_have_flows_of_gradients_until_bytes_are_told() -> None:
    state = folded(
        heard(LEARNERS[0], 0, 1000.0),
        happened.Averaged(at=1000.0, peer=LEARNERS[0], version=1, members=LEARNERS, seconds=0.2),
    )
    assert {(flow.source, flow.target, flow.rate) for flow in state.flows.view(1001.0)} == {
        (LEARNERS[0], LEARNERS[1], 0.0),
        (LEARNERS[1], LEARNERS[0], 0.0),
    }
    told = Link(received={"gradients": 500})
    event = happened.Transferred(
        at=1002.0, peer=LEARNERS[0], seconds=1.0, sent={}, received={}, links={LEARNERS[1]: told}
    )
    fold(state, event)
    fold(state, happened.Averaged(at=1002.5, peer=LEARNERS[0], version=2, members=LEARNERS, seconds=0.2))
    rates = {flow.source: flow.rate for flow in state.flows.view(1003.0)}
    assert rates == {LEARNERS[0]: 0.0, LEARNERS[1]: 500.0}


def test_the_fastest_answer_of_the_last_minute_counts() -> None:
    state = folded(heard(SEED, 0, 1000.0), heard(SAMPLERS[0], 0, 1000.0))
    for at, rtt, shown in (
        (1000.0, 0.3, 0.3),
        (1001.0, 0.1, 0.1),
        (1002.0, 0.2, 0.1),
        (1062.5, 0.4, 0.4),
        (1063.0, 0.0, 0.4),
    ):
        fold(state, heard(SEED, 0, at, seq=int(at)))
        fold(state, transferred(at, SAMPLERS[0], {SEED: 1}, rtt=rtt))
        row = state.row(SEED, at)
        assert row is not None and row.rtt == shown and row.relayed is False


def moved(at: float, learner: PeerId, version: int, state: str) -> happened.Moved:
    return happened.Moved(at=at, peer=learner, version=version, state=state, cause="")


def test_the_phase_strip_follows_each_learner() -> None:
    first, second = LEARNERS
    state = folded(heard(first, 1, 1000.0), heard(second, 1, 1000.0), moved(1001.0, first, 1, "matching"))
    fold(state, moved(1000.5, first, 1, "gathering"))
    phases = {
        phase.peer: (phase.state, phase.since, phase.version)
        for phase in view_of(state, 1001.0).round.learners
    }
    assert phases == {
        first: ("matching", 1001.0, 1),
        second: ("learning", 1000.0, 1),
    }, "late words change nothing"
    fold(state, happened.Averaged(at=1002.0, peer=second, version=2, members=LEARNERS, seconds=0.2))
    ended = view_of(state, 1002.0).round
    assert (ended.last_version, set(ended.last_members), ended.last_seconds, ended.last_at) == (
        2,
        set(LEARNERS),
        0.2,
        1002.0,
    )
    fold(state, happened.Left(at=1003.0, peer=second, name="", reason=""))
    assert [phase.peer for phase in view_of(state, 1003.0).round.learners] == [first]


def test_groups_to_read_are_the_newest_clean_and_cut() -> None:
    for_reading = [
        happened.Shown(
            at=1000.0 + number,
            peer=LEARNERS[0],
            group=f"g{number}",
            sampler=SAMPLERS[0],
            version=3,
            prompt="1 + 1\u202e\n=",
            answer="2",
            completions=("x" * 5000, "2\x00"),
            rewards=(0.0, 1.0),
            advantages=(-0.5, 0.5),
            weights=(1.0, 1e300),
        )
        for number in range(30)
    ]
    state = folded(heard(SEED, 0, 1029.0), *for_reading)
    samples = view_of(state, 1030.0).samples
    assert [sample.id for sample in samples] == [f"g{number}" for number in range(6, 30)]
    newest = samples[-1]
    assert (
        newest.prompt == "1 + 1\n="
        and newest.completions[1] == "2"
        and len(newest.completions[0]) == COMPLETION
    )
    assert newest.weights == (1.0, 2.0**53) and newest.learner == LEARNERS[0]
    assert [sample.id for sample in state.samples.view(state.revision - 2)] == ["g28", "g29"]


@pytest.mark.parametrize("points", [499, 501, 1700])
def test_a_long_curve_is_merged_for_the_wire_and_keeps_its_ends(points: int) -> None:
    curve = Series()
    for x in range(points):
        curve.add(x, float(x), float(x), 1.0, x + 1)
    drawn = curve.points(0, 500)
    assert len(drawn) <= 500 and drawn[-1][0] == points - 1
    assert sum(value for _, _, value in drawn) / len(drawn) == pytest.approx((points - 1) / 2, rel=0.01)
    assert curve.points(points - 2) == (
        (points - 2, points - 2.0, points - 2.0),
        (points - 1, points - 1.0, points - 1.0),
    )


def test_the_same_news_again_is_counted_and_the_list_is_bounded() -> None:
    state = folded(heard(SEED, 0, 1000.0))
    for number in range(3000):
        fold(state, happened.Noted(at=1000.0, peer=SEED, level="info", text=f"news {number // 3}"))
    lines = state.events()
    assert len(lines) == 1000 and {line.count for line in lines} == {3} and lines[-1].text == "news 999"
    assert [line.text for line in state.events(since=state.revision - 1)] == ["news 999"]


def test_a_peer_of_which_too_many_know_nothing_makes_room() -> None:
    state = folded(*(heard(who(number), 1, 1000.0 + number) for number in range(5)))
    state._drop(who(0))
    assert who(0) not in state.heat.view().rows and who(0) not in state.spreads.reached
    assert state.gone(since=1) == (who(0),)
    fold(state, heard(who(0), 1, 1010.0, seq=4))
    assert state.gone(since=1) == ()


def test_points_that_are_merged_weigh_by_their_groups() -> None:
    curve = Series(limit=2)
    for version, (value, groups) in enumerate([(0.0, 1.0), (4.0, 3.0), (8.0, 1.0)]):
        curve.add(version, float(version), value, groups, 1)
    assert curve.points() == ((1, 1.0, 3.0), (2, 2.0, 8.0))
