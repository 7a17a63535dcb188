"""The fold: the same events give the same state, bounded and clean."""

from __future__ import annotations

import json
import unicodedata
from typing import get_args

import msgspec
import pytest
from dashboard_happenings import Reader, folded, happenings, strange
from dashboard_story import (
    EVALUATOR,
    HOSTILE,
    LEARNERS,
    SAMPLERS,
    SEED,
    beat,
    digest,
    heard,
    story,
    who,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from dashboard.fold.bounds import Bounds
from dashboard.fold.folds import FOLDS, fold
from dashboard.fold.parts.series import LIMIT, Series
from dashboard.fold.recent import _NOTICES
from dashboard.fold.sentences import _SENTENCES
from dashboard.fold.state import SwarmState
from dashboard.serve.state_view import view_of
from dashboard.text import clean, prose
from swarm import events as happened
from swarm.journal import from_line, to_line
from swarm.membership.identity import human_name
from swarm.protocol import Phase, Role
from swarm.settings.config import Run
from swarm.types import Link, PeerId, Verdict

JOURNAL_ONLY = {happened.Sampled, happened.Stepped, happened.Dropped, happened.Found}
"""Events that no window shows: what a sampler did is in its heartbeats and in the learners' verdicts; what
became of each group is for `swarm replay --audit`."""


def test_every_event_is_folded_told_or_noticed_unless_it_is_for_the_journal_alone() -> None:
    taken = FOLDS.keys() | _SENTENCES.keys() | _NOTICES.keys()
    assert set(get_args(happened.AnyEvent)) - taken == JOURNAL_ONLY


@settings(max_examples=120, deadline=None)
@given(st.lists(happenings, max_size=25))
def test_folding_a_journal_equals_folding_the_live_feed(told: list[happened.Event]) -> None:
    replayed = [from_line(to_line(one)) for one in told]
    assert view_of(folded(*replayed), 50.0) == view_of(folded(*told), 50.0)


@settings(max_examples=150, deadline=None)
@given(st.lists(happenings, min_size=1, max_size=40), st.data())
def test_a_reader_of_differences_ends_where_a_reader_of_everything_is(
    told: list[happened.Event], data: st.DataObject
) -> None:
    bounds = Bounds(points=6, events=20, peers=4, samples=2, columns=4)
    state, reader = SwarmState(bounds=bounds), Reader()
    for one in told:
        fold(state, one)
        if data.draw(st.booleans()):
            reader.take(view_of(state, 50.0, reader.revision))
    reader.take(view_of(state, 50.0, reader.revision))
    fresh = Reader()
    fresh.take(view_of(state, 50.0))
    mine, theirs = reader.shows(bounds.samples), fresh.shows(bounds.samples)
    reader.lines = {number: line for number, line in reader.lines.items() if number in fresh.lines}
    assert reader.lines == fresh.lines
    assert mine[:2] + mine[3:] == theirs[:2] + theirs[3:]


def test_a_reader_of_differences_survives_thinned_curves_and_dropped_peers() -> None:
    state, reader = SwarmState(), Reader()
    for number in range(LIMIT + 300):
        fold(
            state, happened.Evaluated(at=1.0, peer=EVALUATOR, version=number, accuracy=number / 9999, tasks=1)
        )
        if number % 70 == 0 or number == LIMIT + 299:
            reader.take(view_of(state, 2.0, reader.revision))
    assert reader.curves["accuracy"].keys() >= {x for x, _, _ in state.series["accuracy"].points()[-140:]}
    assert reader.rest is not None and not reader.rest.full, "a view after the thinning is a difference again"
    most = state.bounds.peers
    for number in range(most + 60):
        fold(state, heard(PeerId(f"peer{number}"), 1, 1.0))
        if number > most - 2:
            reader.take(view_of(state, 2.0, reader.revision))
            assert not reader.rest.full, "dropped rows are told as gone"
    assert len(reader.peers) == most and reader.peers.keys() == state.peers.keys()


@settings(max_examples=80, deadline=None)
@given(st.lists(happenings, max_size=25))
def test_a_view_is_strict_json_without_control_or_bidi_characters(told: list[happened.Event]) -> None:
    view = view_of(folded(*told), 50.0)
    text = json.dumps(msgspec.to_builtins(view), allow_nan=False, ensure_ascii=False)
    assert not {character for character in text if unicodedata.category(character)[0] == "C"}


def test_judged_and_counted_of_one_learner_are_counted_once() -> None:
    learner, sampler, stale = LEARNERS[0], SAMPLERS[0], {"stale": 3}
    judged = happened.Judged(
        at=1,
        peer=learner,
        group="g",
        sampler=sampler,
        verdict=Verdict.STALE,
        detail="",
        versions=70,
        seconds=9.0,
    )
    counted = happened.Counted(
        at=2, peer=learner, verdicts=stale, versions={}, seconds={}, samplers={sampler: stale}
    )
    state = folded(heard(sampler, 1, 0.5), judged, judged, judged, counted)
    assert state.tally.verdicts == {"stale": 3}
    assert state.peers[SAMPLERS[0]].verdicts == {"stale": 3}
    assert [(line.count, line.level) for line in state.events()][-1] == (3, "warning")


def test_lag_is_counted_from_the_newest_release_in_versions_and_seconds() -> None:
    state = folded(*story(50, start=1000.0), heard(SAMPLERS[2], 10, 1040.0, seq=99, start=1000.0))
    row = state.row(SAMPLERS[2], now=1040.0)
    assert row is not None and row.lag == 40
    assert row.released == 1000.0 + 10 * 0.6


def test_a_claimed_version_does_not_move_the_newest_once_a_release_is_known() -> None:
    state = folded(*story(5, start=0.0), heard(SAMPLERS[0], 10**12, 9.0, seq=99))
    assert state.version == 5


def test_a_silent_peer_is_lost_and_a_new_heartbeat_brings_it_back() -> None:
    state = folded(heard(SAMPLERS[0], 1, 100.0, seq=1))
    patience = Run().pace.patience
    assert state.peers[SAMPLERS[0]].status(100.0 + patience, patience) == "alive"
    assert state.peers[SAMPLERS[0]].status(100.1 + patience, patience) == "lost"
    fold(state, happened.Lost(at=111.0, peer=SEED, subject=SAMPLERS[0], silent=11.0))
    fold(state, heard(SAMPLERS[0], 1, 112.0, seq=1))
    assert state.peers[SAMPLERS[0]].gone == "lost", "an old heartbeat proves nothing"
    fold(state, heard(SAMPLERS[0], 2, 113.0, seq=2))
    assert state.peers[SAMPLERS[0]].status(113.0, patience) == "alive"


def test_a_late_heartbeat_does_not_bring_back_a_peer_that_left_but_a_new_start_does() -> None:
    state = folded(
        heard(SAMPLERS[0], 1, 1.0, seq=1, start=1),
        happened.Left(at=2, peer=SAMPLERS[0], name="", reason="asked"),
    )
    fold(state, heard(SAMPLERS[0], 1, 3.0, seq=2, start=1))
    assert state.peers[SAMPLERS[0]].gone == "left"
    fold(state, heard(SAMPLERS[0], 1, 4.0, seq=1, start=4))
    assert state.peers[SAMPLERS[0]].gone == ""


def test_learners_with_different_weights_of_one_version_are_told_apart() -> None:
    state = folded(heard(LEARNERS[0], 3, 1.0), heard(LEARNERS[1], 3, 1.0), heard(LEARNERS[0], 4, 2.0, seq=1))
    assert state.agreement.view().same == 1
    other = msgspec.structs.replace(beat(LEARNERS[1], 4, 2.0, seq=1), weights=digest(77))
    fold(state, happened.Heard(at=2.0, peer=SEED, subject=LEARNERS[1], beat=other))
    assert state.agreement.view().different == 1
    fold(state, happened.Snapped(at=3.0, peer=LEARNERS[1], version=4, mine=digest(77), theirs=digest(4)))
    view = state.agreement.view()
    assert (view.same, view.different, view.version, view.learners) == (2, 0, 4, 2)


def test_one_version_trained_by_two_learners_is_one_point_weighted_by_groups() -> None:
    def trained(learner: PeerId, groups: int, reward: float) -> happened.Trained:
        metrics = {"reward": reward}
        return happened.Trained(
            at=1,
            peer=learner,
            version=7,
            groups=groups,
            members=2,
            metrics=metrics,
            gather=0,
            learn=0,
            average=0,
            step=0,
        )

    state = folded(trained(LEARNERS[0], 30, 1.0), trained(LEARNERS[1], 10, 0.0))
    assert state.series["reward"].points() == ((7, 1.0, 0.75),)
    assert state.tally.trained == 40
    rows = {row.id: row.share for row in state.rows(now=1.0)}
    assert state.peers[LEARNERS[0]].trained == 30 and set(rows.values()) == {None}, (
        "an unknown role has no share"
    )


@given(
    st.lists(st.tuples(st.integers(0, 5000), st.floats(-10, 10)), min_size=1, max_size=300),
    st.integers(1, 20),
)
@settings(max_examples=30, deadline=None)
def test_a_thinned_curve_keeps_order_range_and_limit(points: list[tuple[int, float]], times: int) -> None:
    curve = Series()
    for turn in range(times):
        for version, value in points:
            curve.add(version + 5001 * turn, 0.0, value, 1.0, 1)
    assert curve.xs == sorted(set(curve.xs)) and len(curve.xs) <= LIMIT
    low, high = min(value for _, value in points), max(value for _, value in points)
    assert all(low - 1e-9 <= value <= high + 1e-9 for value in curve.values)


@given(st.text())
def test_cleaning_is_bounded_and_settled_after_once(text: str) -> None:
    assert len(clean(text)) <= 40
    assert clean(clean(text)) == clean(text)


@pytest.mark.parametrize("unseen", "\u034f\u115f\u1160\u17b4\u180b\u2800\u3164\ufe0f\uffa0\U000e0100")
def test_letters_that_no_font_draws_make_no_label(unseen: str) -> None:
    assert clean(f"a{unseen}b") == prose(f"a{unseen}b", 10) == "ab" and clean(5 * unseen) == ""


def test_a_hostile_name_keeps_its_letters_and_loses_its_tricks() -> None:
    assert clean("a\u202eb\x1b[31m\u200bc\nd") == "ab[31mc d"
    assert clean(HOSTILE).startswith("<img src=x")
    assert folded(heard(who(9), 1, 1.0, name="\u202e")).name(who(9)).count("-") == 2


def test_a_name_follows_from_the_key_and_what_a_peer_calls_itself_is_a_claim() -> None:
    victim = human_name(LEARNERS[0])
    state = folded(heard(LEARNERS[0], 1, 1.0), heard(who(9), 1, 1.0, name=victim))
    for peer, label in ((LEARNERS[0], ""), (who(9), victim)):
        shown = state.row(peer, 1.0)
        assert shown is not None and (shown.name, shown.claims.label) == (human_name(peer), label)
    started = happened.Started(
        at=2.0, peer=who(9), name="my\u202e box", role=Role.SAMPLER, version=1, hardware=""
    )
    fold(state, started)
    assert (again := state.row(who(9), 2.0)) is not None and again.claims.label == "my box"
    assert all("my box" not in line.text and victim not in line.text for line in state.events(peer=who(9)))


def test_accuracy_before_and_after_are_those_of_the_first_and_the_last_version() -> None:
    state = folded(
        *story(30, start=0.0), happened.Evaluated(at=99, peer=EVALUATOR, version=20, accuracy=0.1, tasks=256)
    )
    assert state.accuracies["first"] == (0, 0.352)
    assert state.accuracies["last"][0] == 30


def test_prose_keeps_its_lines_and_loses_its_tricks() -> None:
    assert prose("a\u202e b\n\x1b[31mc\r\nd", 99) == "a b\n[31mc\nd"
    assert len(prose("x" * 999, 50)) == 50 and prose("x" * 999, 50).endswith("…")


@pytest.mark.parametrize(
    "text", ["   ", "", "\t42", "42  ", "a  b", "def f(x):\n    return  1\n", "\n\n\tä  \n"]
)
def test_prose_keeps_the_white_space_that_a_policy_wrote(text: str) -> None:
    assert prose(text, 99) == text == prose(prose(text, 99), 99)


@given(st.text(), st.integers(1, 20))
def test_prose_is_bounded_and_settled_after_once(text: str, limit: int) -> None:
    once = prose(text, limit)
    assert len(once) <= limit and prose(once, limit) == once
    assert not {each for each in once if unicodedata.category(each)[0] == "C"} - {"\n", "\t"}


@given(st.lists(happenings, max_size=6), strange)
@settings(max_examples=60, deadline=None)
def test_an_event_of_an_impossible_peer_changes_nothing(told: list[happened.Event], peer: PeerId) -> None:
    state = folded(*told)
    before = view_of(state, 50.0)
    fold(state, happened.Left(at=1.0, peer=PeerId(f"{peer} \u202e"), name="", reason=""))
    assert view_of(state, 50.0) == before


def test_a_clock_that_is_off_is_told_and_moves_nothing() -> None:
    state = SwarmState()
    for second in range(6):
        ahead = msgspec.structs.replace(
            beat(SAMPLERS[0], 1, 1000.0 + second, seq=second), at=1000.0 + second + 7200
        )
        fold(state, happened.Heard(at=1000.0 + second, peer=SEED, subject=SAMPLERS[0], beat=ahead))
        row = state.row(SAMPLERS[0], 1006.0)
        assert row is not None and row.skew == (7200.0 if second >= 4 else None)
    fold(state, happened.Moved(at=1005.0 + 7200, peer=SAMPLERS[0], version=1, state="sampling", cause=""))
    fold(state, happened.Faulted(at=1e12, peer=SAMPLERS[0], part="dht", detail=""))
    assert state.last == 1005.0 and state.events()[-1].at == 1005.0


def test_a_sentence_about_a_broken_round_names_its_members_and_is_about_them() -> None:
    reason = f"{LEARNERS[1]} sent no part within 5 s"
    state = folded(
        heard(LEARNERS[1], 1, 1.0),
        happened.RoundBroke(at=1.5, peer=LEARNERS[0], version=2, reason=reason),
    )
    line = state.events()[-1]
    assert f"{human_name(LEARNERS[1])} sent no part" in line.text and "12D3" not in line.text
    assert set(line.peers) == set(LEARNERS)
    assert state.events(peer=LEARNERS[1])[-1] == line and state.events(peer=SAMPLERS[0]) == ()


def test_shares_are_parts_of_all_groups() -> None:
    state = folded(*story(9, start=0.0))
    for sampler, groups in ((SAMPLERS[0], 0), (SAMPLERS[1], 9 * 32)):
        counts = {"admit": groups, "expired": 4, "stale": 2}
        fold(
            state,
            happened.Counted(
                at=9, peer=SEED, verdicts=counts, versions={}, seconds={}, samplers={sampler: counts}
            ),
        )
    rows = {row.id: row for row in state.rows(9.0)}
    assert rows[SAMPLERS[0]].share == rows[SAMPLERS[1]].share == rows[LEARNERS[0]].share == 0.5
    assert rows[SAMPLERS[1]].admitted == 9 * 32 and rows[SAMPLERS[1]].refused == {"expired": 4, "stale": 2}
    assert rows[SEED].share is None


def test_the_pulse_is_taken_once_a_slot_and_not_while_nobody_speaks() -> None:
    state = folded(*(heard(LEARNERS[0], 3, 1000.0 + 2 * beats, seq=beats) for beats in range(10)))
    fold(state, heard(SAMPLERS[0], 1, 5000.0))
    peers = state.series["peers"]
    assert peers.by == "time" and peers.points() == tuple((at, at, 1.0) for at in (1005, 1010, 1015, 1020))
    assert state.series["groups_per_second"].last() == 11.5 and state.series["busy"].last() == 0.83


@pytest.mark.parametrize("name", ["peers", "busy", "__proto__", "Reward", "x" * 40])
def test_a_learner_cannot_draw_a_curve_of_a_strange_name(name: str) -> None:
    state = folded(
        happened.Trained(
            at=1,
            peer=LEARNERS[0],
            version=7,
            groups=1,
            members=1,
            metrics={name: 9.0},
            gather=0,
            learn=0,
            average=0,
            step=0,
        )
    )
    assert name not in state.series


def test_tokens_made_for_nothing_are_counted_by_cause_and_samplers_cannot_claim_trained_ones() -> None:
    learner, sampler = PeerId(LEARNERS[0]), PeerId(SAMPLERS[0])
    counts = {"verdicts": {}, "versions": {}, "seconds": {}, "samplers": {}}
    counted = happened.Counted(at=1, peer=learner, tokens={"trained": 990, "expired": 6, "new": 1}, **counts)
    beats = list[happened.Event]()
    for number in (1, 2):
        made = heard(sampler, number, float(number), seq=number)
        claims = {"doomed": 3 * number, "over-quota": 1, "trained": 10**6}
        beat = msgspec.structs.replace(made.beat, wasted=claims)
        beats.append(msgspec.structs.replace(made, beat=beat))
    state = folded(*beats, counted)
    assert view_of(state, 2.0).tokens == {"trained": 990, "expired": 6, "doomed": 6, "over-quota": 1}
    state.tally.sanitize()
    assert state.tokens()["trained"] == 990


def test_tokens_made_for_nothing_are_those_of_all_starts() -> None:
    state = SwarmState()
    for at, start, doomed in ((1.0, 1, 5), (2.0, 1, 7), (3.0, 2, 0), (4.0, 2, 1)):
        made = heard(PeerId(SAMPLERS[0]), 1, at, seq=int(at))
        beat = msgspec.structs.replace(made.beat, incarnation=start, wasted={"doomed": doomed})
        fold(state, msgspec.structs.replace(made, beat=beat))
    assert state.tokens() == {"doomed": 8}


def test_a_learner_whose_clock_was_set_back_for_a_new_start_is_in_the_round_again() -> None:
    learner, state = PeerId(LEARNERS[0]), SwarmState()
    for at, start, ahead, phase in ((1.0, 1, 3600.0, Phase.GATHERING), (5.0, 2, 0.0, Phase.LEARNING)):
        made = heard(learner, int(at), at, seq=1)
        beat = msgspec.structs.replace(
            made.beat, role=Role.LEARNER, incarnation=start, phase=phase, at=at + ahead
        )
        fold(state, msgspec.structs.replace(made, beat=beat))
    (shown,) = state.rounds.view(state.alive(Role.LEARNER, 5.0)).learners
    assert (shown.state, shown.version, shown.since) == (Phase.LEARNING, 5, 5.0)


def test_what_a_stranger_says_it_received_is_not_counted() -> None:
    learner, stranger, state = PeerId(LEARNERS[0]), PeerId(SAMPLERS[0]), SwarmState()
    fold(state, heard(learner, 1, 1.0, role=Role.LEARNER))
    fold(state, msgspec.structs.replace(heard(stranger, 1, 1.0), invited=False))
    row = state.row(learner, 1.0)
    links = {learner: Link(received={"rollouts": 2**53}, rtt=1e-5, relayed=True)}
    received = {"rollouts": 2**53}
    fold(
        state,
        happened.Transferred(at=2, peer=stranger, seconds=1.0, sent={}, received=received, links=links),
    )
    assert not state.flows.total and not state.flows.view(2.0) and state.row(learner, 1.0) == row
