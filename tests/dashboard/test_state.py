"""The fold: the same events give the same state, bounded and clean."""

from __future__ import annotations

import gc
import json
import sys
import unicodedata

import msgspec
from dashboard_story import EVALUATOR, HOSTILE, LEARNERS, SAMPLERS, SEED, beat, digest, heard, story, who
from hypothesis import given, settings
from hypothesis import strategies as st

from dashboard.series import LIMIT, Series
from dashboard.state import LINES, PEERS, State, fold
from dashboard.text import clean
from swarm import events as happened
from swarm.config import Run
from swarm.types import PeerId, Release, Role, Verdict

peers = st.sampled_from([*LEARNERS, *SAMPLERS, SEED])
versions = st.integers(-1, 40) | st.just(2**60)
times = st.floats(0, 1e6)
verdicts = st.sampled_from(Verdict)
words = st.text(st.characters(codec="utf-8") | st.sampled_from("\u202e\u200b\x1b\n"), max_size=60)
numbers = st.floats(-1e300, 1e300)
labels = st.sampled_from(["admit", "stale", "17", "0.25", "-3", "nan", "1e999", "²", "x" * 40])
counts = st.dictionaries(labels, st.integers(-5, 2**62), max_size=4)
samplers = st.dictionaries(peers | words, counts, max_size=2)
digests = versions.map(lambda version: digest(abs(version)))
beats = st.builds(beat, peers, versions, times, words, versions)
metrics = st.dictionaries(st.sampled_from(["reward", "kl", "__proto__", "X"]), numbers, max_size=3)


def event(kind: type[happened.Event], **fields: st.SearchStrategy[object]) -> st.SearchStrategy[happened.Event]:
    return st.builds(kind, at=times, peer=peers, **fields)


releases = st.builds(
    Release, version=versions, weights=digests, manifest=st.just(digest(0)),
    size=st.just(1), parent=st.just(digest(0)), publisher=peers, learners=st.just(1), groups=st.integers(0, 40), released=times,
)  # fmt: skip
happenings = st.one_of(
    event(happened.Started, name=words, role=st.sampled_from(Role), version=versions, hardware=words),
    event(happened.Left, name=words, reason=words),
    event(happened.Heard, subject=peers, beat=beats),
    event(happened.Lost, subject=peers, silent=numbers),
    event(happened.Counted, verdicts=counts, versions=counts, seconds=counts, samplers=samplers),
    event(happened.Judged, group=words, sampler=peers, verdict=verdicts, detail=words, versions=versions, seconds=numbers),
    event(
        happened.Trained, version=versions, groups=st.integers(-1, 99), members=st.integers(0, 9), metrics=metrics,
        gather=numbers, learn=numbers, average=numbers, step=numbers,
    ),
    event(happened.Moved, version=versions, state=words, cause=words),
    event(happened.Averaged, version=versions, members=st.lists(peers, max_size=3).map(tuple), seconds=numbers),
    event(happened.Released, release=releases),
    event(happened.Adopted, version=versions, weights=digests, fetch=numbers, load=numbers, age=numbers),
    event(happened.Snapped, version=versions, mine=st.just(digest(1)), theirs=st.just(digest(2))),
    event(happened.Evaluated, version=versions, accuracy=numbers, tasks=st.integers(-1, 999)),
    event(happened.Faulted, part=words, detail=words),
    event(happened.Noted, level=words, text=words),
)


def folded(*told: happened.Event) -> State:
    state = State()
    for one in told:
        fold(state, one)
    return state


@settings(max_examples=120, deadline=None)
@given(st.lists(happenings, max_size=25))
def test_folding_a_journal_equals_folding_the_live_feed(told: list[happened.Event]) -> None:
    replayed = [happened.from_line(happened.to_line(one)) for one in told]
    assert folded(*replayed).view(5e5) == folded(*told).view(5e5)


@settings(max_examples=120, deadline=None)
@given(st.lists(happenings, min_size=1, max_size=40), st.data())
def test_a_reader_of_differences_ends_where_a_reader_of_everything_is(told: list[happened.Event], data: st.DataObject) -> None:
    state, reader = State(), Reader()
    for one in told:
        fold(state, one)
        if data.draw(st.booleans()):
            reader.take(state.view(5e5, reader.revision))
    reader.take(state.view(5e5, reader.revision))
    fresh = Reader()
    fresh.take(state.view(5e5))
    assert reader.rest["head"] == fresh.rest["head"]
    assert (reader.names, reader.lines, reader.curves) == (fresh.names, fresh.lines, fresh.curves)


def test_a_reader_of_differences_survives_thinned_curves_and_dropped_peers() -> None:
    state, reader = State(), Reader()
    for number in range(LIMIT + 300):
        fold(state, happened.Evaluated(at=1.0, peer=EVALUATOR, version=number, accuracy=number / 9999, tasks=1))
        if number % 70 == 0 or number == LIMIT + 299:
            reader.take(state.view(2.0, reader.revision))
    assert reader.curves["accuracy"] == dict(state.series["accuracy"].points())
    assert not reader.rest["full"], "a view after the thinning is a difference again"
    for number in range(PEERS + 60):
        fold(state, heard(PeerId(f"peer{number}"), 1, 1.0))
        if number > PEERS - 2:
            reader.take(state.view(2.0, reader.revision))
    assert len(reader.names) == PEERS and reader.names.keys() == state.peers.keys()


class Reader:
    """What app.js does with views."""

    def __init__(self) -> None:
        self.revision = 0
        self.names: dict[str, object] = {}
        self.lines: dict[int, object] = {}
        self.curves: dict[str, dict[int, float]] = {}
        self.rest: dict[str, object] = {}

    def take(self, view: dict) -> None:
        if view["full"]:
            self.names, self.lines, self.curves = {}, {}, {}
        self.revision, self.rest = view["revision"], view
        for row in view["peers"]:
            self.names[row["id"]] = (row["name"], row["version"], row["gone"], row["state"], row["verdicts"])
        self.lines |= {line["id"]: line for line in view["events"]}
        for name, points in view["series"].items():
            self.curves.setdefault(name, {}).update(points)


@settings(max_examples=80, deadline=None)
@given(st.lists(happenings, max_size=25))
def test_a_view_is_strict_json_without_control_or_bidi_characters(told: list[happened.Event]) -> None:
    view = folded(*told).view(5e5)
    text = json.dumps(view, allow_nan=False, ensure_ascii=False)
    assert not {character for character in text if unicodedata.category(character)[0] == "C"}


def test_memory_is_bounded_after_a_hundred_thousand_events() -> None:
    state = State()
    sizes = []
    for number in range(100_000):
        at, peer, ones = float(number), PeerId(f"peer{number}"), {str(number): 1}
        told: happened.Event = (
            heard(peer, number, at, role=Role.SAMPLER),
            happened.Trained(
                at=at, peer=LEARNERS[0], version=number, groups=1, members=1, metrics={f"m{number}": 1.0, "kl": 0.1},
                gather=0, learn=0, average=0, step=0,
            ),
            happened.Noted(at=at, peer=SEED, level="info", text=f"{number}"),
            happened.Counted(at=at, peer=SEED, verdicts=ones, versions=ones, seconds=ones, samplers={f"s{number}": ones}),
            happened.Adopted(at=at, peer=LEARNERS[1], version=number, weights=digest(number), fetch=0, load=0, age=0),
        )[number % 5]  # fmt: skip
        fold(state, told)
        if number in (50_000, 99_999):
            sizes.append(_deep_size(state))
    assert len(state.peers) <= PEERS and len(state.lines) <= LINES
    assert sizes[1] < sizes[0] * 1.1 and sizes[1] < 20e6


def _deep_size(root: object) -> int:
    """Bytes of everything that `root` alone keeps alive: its containers and their values."""
    seen: dict[int, object] = {}
    open_ends = [root]
    while open_ends:
        thing = open_ends.pop()
        if id(thing) not in seen and not isinstance(thing, type):
            seen[id(thing)] = thing
            open_ends += gc.get_referents(thing)
    return sum(map(sys.getsizeof, seen.values()))


def test_judged_and_counted_of_one_learner_are_counted_once() -> None:
    learner, sampler, stale = LEARNERS[0], SAMPLERS[0], {"stale": 3}
    judged = happened.Judged(
        at=1, peer=learner, group="g", sampler=sampler, verdict=Verdict.STALE, detail="", versions=70, seconds=9.0
    )
    counted = happened.Counted(at=2, peer=learner, verdicts=stale, versions={}, seconds={}, samplers={sampler: stale})
    state = folded(heard(sampler, 1, 0.5), judged, judged, judged, counted)
    assert state.verdicts == {"stale": 3}
    assert state.peers[SAMPLERS[0]].verdicts == {"stale": 3}
    assert [(line.count, line.news.level) for line in state.lines][-1] == (3, "warning")


def test_lag_is_counted_from_the_newest_release_in_versions_and_seconds() -> None:
    state = folded(*story(50, start=1000.0), heard(SAMPLERS[2], 10, 1040.0, seq=99, start=1000.0))
    row = next(row for row in state.rows(now=1040.0) if row["id"] == SAMPLERS[2])
    assert row["lag_versions"] == 40
    assert row["lag_seconds"] == 1040.0 - (1000.0 + 10 * 0.6)


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
    state = folded(heard(SAMPLERS[0], 1, 1.0, seq=1, start=1), happened.Left(at=2, peer=SAMPLERS[0], name="", reason="asked"))
    fold(state, heard(SAMPLERS[0], 1, 3.0, seq=2, start=1))
    assert state.peers[SAMPLERS[0]].gone == "left"
    fold(state, heard(SAMPLERS[0], 1, 4.0, seq=1, start=4))
    assert state.peers[SAMPLERS[0]].gone == ""


def test_learners_with_different_weights_of_one_version_are_told_apart() -> None:
    state = folded(heard(LEARNERS[0], 3, 1.0), heard(LEARNERS[1], 3, 1.0), heard(LEARNERS[0], 4, 2.0, seq=1))
    assert state.agreement.view()["same"] == 1
    other = msgspec.structs.replace(beat(LEARNERS[1], 4, 2.0, seq=1), weights=digest(77))
    fold(state, happened.Heard(at=2.0, peer=SEED, subject=LEARNERS[1], beat=other))
    assert state.agreement.view()["different"] == 1
    fold(state, happened.Snapped(at=3.0, peer=LEARNERS[1], version=4, mine=digest(77), theirs=digest(4)))
    assert state.agreement.view() | {"digests": None} == {"same": 2, "different": 0, "version": 4, "digests": None, "learners": 2}


def test_one_version_trained_by_two_learners_is_one_point_weighted_by_groups() -> None:
    def trained(learner: PeerId, groups: int, reward: float) -> happened.Trained:
        metrics = {"reward": reward}
        return happened.Trained(
            at=1, peer=learner, version=7, groups=groups, members=2, metrics=metrics, gather=0, learn=0, average=0, step=0
        )

    state = folded(trained(LEARNERS[0], 30, 1.0), trained(LEARNERS[1], 10, 0.0))
    assert state.series["reward"].points() == [(7, 0.75)]
    assert state.trained == 40


@given(st.lists(st.tuples(st.integers(0, 5000), st.floats(-10, 10)), min_size=1, max_size=300), st.integers(1, 20))
@settings(max_examples=30, deadline=None)
def test_a_thinned_curve_keeps_order_range_and_limit(points: list[tuple[int, float]], times: int) -> None:
    curve = Series()
    for turn in range(times):
        for version, value in points:
            curve.add(version + 5001 * turn, value, 1.0, 1)
    assert curve.versions == sorted(set(curve.versions)) and len(curve.versions) <= LIMIT
    low, high = min(value for _, value in points), max(value for _, value in points)
    assert all(low - 1e-9 <= value <= high + 1e-9 for value in curve.values)


@given(st.text())
def test_cleaning_is_bounded_and_settled_after_once(text: str) -> None:
    assert len(clean(text)) <= 40
    assert clean(clean(text)) == clean(text)


def test_a_hostile_name_keeps_its_letters_and_loses_its_tricks() -> None:
    assert clean("a\u202eb\x1b[31m\u200bc\nd") == "ab[31mc d"
    assert clean(HOSTILE).startswith("<img src=x")
    assert folded(heard(who(9), 1, 1.0, name="\u202e")).name(who(9)).count("-") == 2


def test_accuracy_before_and_after_are_those_of_the_first_and_the_last_version() -> None:
    state = folded(*story(30, start=0.0), happened.Evaluated(at=99, peer=EVALUATOR, version=20, accuracy=0.1, tasks=256))
    assert state.accuracies["first"] == (0, 0.352)
    assert state.accuracies["last"][0] == 30
