"""Strategies for any event that a window may be told, sane or hostile, and a reader that merges views as the
page does."""

from __future__ import annotations

from dashboard_story import EVALUATOR, LEARNERS, SAMPLERS, SEED, beat, digest
from hypothesis import strategies as st

from dashboard.fold.folds import fold
from dashboard.fold.state import SwarmState
from dashboard.views import StateView
from swarm import events as happened
from swarm.protocol import Role
from swarm.types import Estimate, Link, PeerId, Release, Verdict

peers = st.sampled_from([*LEARNERS, *SAMPLERS, SEED, EVALUATOR])
strange = st.sampled_from(["", "\u202e", "a b", "x" * 100, "12D3KooWnobody"]).map(PeerId)
versions = st.integers(-1, 40) | st.just(2**60)
times = st.floats(0, 60) | st.floats(0, 1e6) | st.sampled_from([-1e308, -1.0, 1e12, 1e308])
verdicts = st.sampled_from(Verdict)
words = st.text(st.characters(codec="utf-8") | st.sampled_from("\u202e\u200b\x1b\n"), max_size=60)
states = words | st.sampled_from(["gathering", "learning", "Matching", "releasing"])
numbers = st.floats(-1e300, 1e300)
labels = st.sampled_from(["admit", "stale", "expired", "17", "0.25", "-3", "nan", "1e999", "²", "x" * 40])
counts = st.dictionaries(labels, st.integers(-5, 2**62), max_size=4)
samplers = st.dictionaries(peers | words, counts, max_size=2)
digests = versions.map(lambda version: digest(abs(version)))
beats = st.builds(beat, peers, versions, times, words, versions)
curves = st.sampled_from(["reward", "kl", "peers", "__proto__", "X", "constructor"])
metrics = st.dictionaries(curves, numbers, max_size=3)
bytes_by_purpose = st.dictionaries(
    st.sampled_from(["rollouts", "weights", "gradients", "gossip", "other", "x"]),
    st.integers(-5, 2**62),
    max_size=3,
)
links = st.dictionaries(
    peers | strange,
    st.builds(Link, received=bytes_by_purpose, rtt=numbers, relayed=st.booleans()),
    max_size=3,
)
figures = st.lists(numbers, max_size=3).map(tuple)


def event(
    kind: type[happened.Event], /, **fields: st.SearchStrategy[object]
) -> st.SearchStrategy[happened.Event]:
    return st.builds(kind, at=times, peer=peers | strange, **fields)


releases = st.builds(
    Release,
    version=versions.map(abs),
    weights=digests,
    size=st.integers(1, 2**62),
    parent=st.just(digest(0)),
    publisher=peers | strange,
    learners=st.just(1),
    groups=st.integers(0, 40),
    released=times,
)
happenings = st.one_of(
    event(happened.Started, name=words, role=st.sampled_from(Role), version=versions, hardware=words),
    event(happened.Left, name=words, reason=words),
    event(happened.Heard, subject=peers | strange, beat=beats),
    event(happened.Lost, subject=peers | strange, silent=numbers),
    event(happened.Counted, verdicts=counts, versions=counts, seconds=counts, samplers=samplers),
    event(happened.Returned, groups=st.lists(words, max_size=3).map(tuple)),
    event(
        happened.Judged,
        group=words,
        sampler=peers,
        verdict=verdicts,
        detail=words,
        versions=versions,
        seconds=numbers,
    ),
    event(
        happened.Trained,
        version=versions,
        groups=st.integers(-1, 99),
        members=st.integers(0, 9),
        metrics=metrics,
        gather=numbers,
        learn=numbers,
        average=numbers,
        step=numbers,
    ),
    event(happened.Moved, version=versions, state=states, cause=words),
    event(
        happened.Averaged,
        version=versions,
        members=st.lists(peers | strange, max_size=3).map(tuple),
        seconds=numbers,
        scaled=st.dictionaries(peers | strange, numbers, max_size=3),
    ),
    event(happened.RoundBroke, version=versions, reason=words | peers.map("lost {}".format)),
    event(happened.Released, release=releases),
    event(happened.Adopted, version=versions, weights=digests, fetch=numbers, load=numbers, age=numbers),
    event(happened.Snapped, version=versions, mine=st.just(digest(1)), theirs=st.just(digest(2))),
    event(happened.CaughtUp, version=versions, behind=versions),
    event(happened.Unreached, version=versions, subject=peers, rounds=versions),
    event(
        happened.Forked,
        version=versions,
        since=versions,
        versions=versions,
        groups=versions,
        first=st.just(digest(1)),
    ),
    event(
        happened.Evaluated,
        version=versions,
        accuracy=numbers,
        tasks=st.integers(-1, 999),
        sampled=st.dictionaries(
            st.sampled_from(["mean@8", "pass@8", "pass@x"]),
            st.builds(Estimate, value=numbers, low=numbers, high=numbers),
        ),
        sets=st.dictionaries(
            st.sampled_from(["hard", "other-task", "<b>x"]),
            st.builds(happened.SetResult, accuracy=numbers, tasks=st.integers(-1, 999)),
        ),
    ),
    event(
        happened.Shown,
        group=words,
        sampler=peers,
        version=versions,
        prompt=words,
        answer=words,
        completions=st.lists(words, max_size=3).map(tuple),
        rewards=figures,
        advantages=figures,
        weights=figures,
    ),
    event(
        happened.Transferred, seconds=numbers, sent=bytes_by_purpose, received=bytes_by_purpose, links=links
    ),
    event(happened.Faulted, part=words, detail=words),
    event(
        happened.Audited,
        group=words,
        sampler=peers | strange,
        finding=words,
        tokens=versions,
        off=versions,
        largest=numbers,
        until=numbers,
        strikes=versions,
        why=words,
    ),
    event(happened.LeftOut, learner=peers | strange, until=numbers, why=words),
    event(happened.Rejected, sender=peers | strange, kind=words, reason=words),
    event(happened.Noted, level=words, text=words),
)


def folded(*told: happened.Event) -> SwarmState:
    state = SwarmState()
    for one in told:
        fold(state, one)
    return state


class Reader:
    """What store.js does with views. What follows from the time or from others is left out: the dashboard
    computes it anew."""

    def __init__(self) -> None:
        self.revision = 0
        self.peers: dict[str, object] = {}
        self.curves: dict[str, dict[int, object]] = {}
        self.lines: dict[int, object] = {}
        self.releases: dict[int, object] = {}
        self.samples: dict[str, object] = {}
        self.rest: StateView | None = None
        self.flows: object = None

    def take(self, view: StateView) -> None:
        if view.full:
            self.__init__()  # type: ignore[misc]
        self.revision, self.rest = view.revision, view
        self.flows = self.flows if view.flows is None else view.flows
        for gone in view.gone:
            self.peers.pop(gone, None)
        for row in view.peers:
            self.peers[row.id] = (
                row.name,
                row.role,
                row.gone,
                row.heard,
                row.version,
                row.released,
                row.admitted,
                row.refused,
                row.rtt,
                row.relayed,
                row.skew,
                row.claims,
            )
        for name, points in view.series.items():
            self.curves.setdefault(name, {}).update({x: (at, value) for x, at, value in points})
        self.lines |= {line.id: line for line in view.events}
        self.releases |= {
            release.version: (release.groups, release.first, release.last) for release in view.releases
        }
        for sample in view.samples:
            self.samples.pop(sample.id, None)
            self.samples[sample.id] = sample

    def shows(self, most_samples: int) -> tuple[object, ...]:
        assert self.rest is not None
        rest = self.rest
        whole = (
            rest.head,
            rest.round,
            rest.verdicts,
            rest.lag,
            rest.agreement,
            self.flows,
            rest.traffic,
            rest.problems,
        )
        releases = dict(sorted(self.releases.items())[-64:])
        return (
            self.peers,
            self.curves,
            self.lines,
            releases,
            list(self.samples.items())[-most_samples:],
            whole,
        )
