"""A kept state goes on as if it had never stopped, fits where it must, and believes nothing."""

from __future__ import annotations

import tracemalloc

import msgspec
import pytest
import zstandard
from dashboard_happenings import folded, happenings
from dashboard_story import LEARNERS, SAMPLERS, heard, story
from hypothesis import given, settings
from hypothesis import strategies as st

from dashboard.fold import snapshot
from dashboard.fold.bounds import Bounds
from dashboard.fold.folds import fold
from dashboard.fold.snapshot import SnapshotError, dump, load
from dashboard.fold.state import SwarmState
from dashboard.serve.state_view import view_of
from dashboard.views import Condition, StateView
from swarm import events as happened

SMALL = Bounds(points=6, events=9, peers=4, samples=2, columns=4)


def apart_from_problems(view: StateView) -> StateView:
    condition = Condition(kind="ok", text="")  # it follows from the problems
    return msgspec.structs.replace(view, problems=(), condition=condition)


@settings(max_examples=150, deadline=None)
@given(st.lists(happenings, max_size=30), st.lists(happenings, max_size=15))
def test_a_state_that_was_kept_goes_on_as_if_it_had_never_stopped(
    before: list[happened.Event], after: list[happened.Event]
) -> None:
    state = SwarmState(bounds=SMALL)
    for event in before:
        fold(state, event)
    again = load(dump(state), bounds=SMALL)
    for event in after:
        fold(state, event)
        fold(again, event)
    assert apart_from_problems(view_of(again, 50.0)) == apart_from_problems(view_of(state, 50.0))
    assert again.heat.view() == state.heat.view() and again.revision == state.revision


def test_the_phase_of_a_learner_without_a_policy_is_kept_as_it_is() -> None:
    state = folded(heard(LEARNERS[0], -1, 1.0))
    assert load(dump(state)).rounds == state.rounds


def test_a_reader_from_before_the_restart_is_told_everything_anew() -> None:
    state = folded(*story(5, start=0.0))
    again = load(dump(state))
    assert view_of(again, 3.0, since=state.revision - 4).full
    fold(again, heard(SAMPLERS[0], 5, 3.0, seq=99))
    assert not view_of(again, 3.0, since=state.revision).full


@pytest.mark.parametrize("limit", [40_000, 20_000, 12_000])
def test_a_state_gets_coarser_until_it_fits(limit: int) -> None:
    state = folded(*story(700, start=0.0))
    assert len(dump(state)) > limit
    before = view_of(state, 420.0)
    packed = dump(state, limit)
    assert len(packed) <= limit and apart_from_problems(view_of(state, 420.0)) == apart_from_problems(before)
    again = load(packed)
    assert again.peers.keys() == state.peers.keys() and again.tally.trained == state.tally.trained
    assert again.series["reward"].xs[-1] == state.series["reward"].xs[-1]


def test_a_state_that_cannot_fit_says_so() -> None:
    with pytest.raises(SnapshotError, match="cannot be made to fit"):
        dump(folded(*story(5, start=0.0)), limit=100)


@given(st.binary(max_size=60))
def test_bytes_that_are_no_state_are_refused(data: bytes) -> None:
    with pytest.raises(SnapshotError):
        load(data)


@settings(deadline=None, max_examples=60)
@given(st.data())
def test_a_damaged_state_is_refused_or_fit_to_be_shown(data: st.DataObject) -> None:
    plain = bytearray(snapshot._unpack(dump(folded(*story(3, start=0.0)))))
    for _ in range(data.draw(st.integers(1, 4))):
        plain[data.draw(st.integers(0, len(plain) - 1))] = data.draw(st.integers(0, 255))
    try:
        state = load(zstandard.ZstdCompressor().compress(bytes(plain)), bounds=SMALL)
    except SnapshotError:
        return
    for event in story(4, start=5.0):
        fold(state, event)
    msgspec.json.encode(view_of(state, 9.0))
    assert len(state.peers) <= SMALL.peers and all(
        len(curve.xs) <= SMALL.points for curve in state.series.values()
    )


def test_a_state_that_unpacks_to_more_than_any_state_has_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshot, "LARGEST_DUMP", 1 << 20)
    with pytest.raises(SnapshotError, match="a frame declares"):
        load(zstandard.ZstdCompressor().compress(bytes(64 << 20)))


def test_a_small_answer_never_becomes_millions_of_objects() -> None:
    whole = msgspec.msgpack.decode(snapshot._unpack(dump(SwarmState())))
    names = b"\xdd" + (30_000_000).to_bytes(4, "big") + b"\xa1x" * 30_000_000
    bomb = zstandard.compress(msgspec.msgpack.encode(whole | {"members": msgspec.Raw(names)}))
    assert len(bomb) < 10_000
    tracemalloc.start()
    try:
        with pytest.raises(SnapshotError, match="a frame declares"):
            load(bomb)
        assert tracemalloc.get_traced_memory()[1] < 8 << 20
    finally:
        tracemalloc.stop()


def test_a_strangers_state_is_cut_to_the_bounds_and_cleaned() -> None:
    state = folded(*story(40, start=0.0))
    peer = state.peers[SAMPLERS[0]]
    own = peer.name
    peer.name, peer.label, peer.busy, peer.hardware = "neat-ebony-wren", "evil\u202e" * 99, 7.0, "\x1b[31m"
    again = load(dump(state), bounds=SMALL)
    assert len(again.peers) == SMALL.peers and len(again.events()) <= SMALL.events
    row = load(dump(state)).row(SAMPLERS[0], 1.0)
    assert row is not None and row.name == own
    assert len(row.claims.label) == 40 and "\u202e" not in row.claims.label
    assert row.claims.busy == 1.0 and row.claims.hardware == "[31m"


def test_a_state_deeper_than_any_stack_is_refused() -> None:
    plain = snapshot._unpack(dump(SwarmState()))
    fields = len(msgspec.structs.fields(snapshot.SavedState))
    assert plain[:3] == b"\xde" + fields.to_bytes(2, "big")
    deep = b"\xde" + (fields + 1).to_bytes(2, "big") + plain[3:] + b"\xa1x" + b"\x91" * 100_000
    with pytest.raises(SnapshotError):
        load(zstandard.ZstdCompressor().compress(deep))


def test_whoever_loads_a_state_of_a_clock_that_is_ahead_goes_on_by_its_own() -> None:
    state = load(dump(folded(*story(5, start=9e8))), now=1000.0)
    assert state.last == 1000.0 and all(peer.heard <= 1000.0 for peer in state.peers.values())
    for event in story(6, start=2000.0):
        fold(state, event)
    assert 2000.0 <= state.last < 2100.0


def test_a_state_of_another_form_is_refused_with_both_numbers() -> None:
    kept = msgspec.structs.replace(snapshot._keep(SwarmState()), form=99)
    with pytest.raises(SnapshotError, match=r"form 99.*form 1"):
        load(snapshot._pack(kept))
