"""The last minutes of a swarm, for the diagnosis: each peer's phase, since when, and its recent events.

Every event comes in through `take`; dashboard.diagnosis reads the rest. Times are arrivals by this peer's own
clock (that of the newest heartbeat's receiver), so that a peer with a wrong clock cannot make anything look
old. Memory is bounded whatever the events contain, in peers and in marks for each. No snapshot has it: a few
minutes fill it again. Not handled here: the contents of SwarmState (peers, curves, digests), and how long is
too long.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from statistics import fmean
from typing import NamedTuple

from dashboard.fold.peer import known_verdicts
from dashboard.text import LARGEST, clean, number
from swarm import events as happened
from swarm.core.revocation import WAS_REVOKED
from swarm.core.suspensions import Suspension
from swarm.protocol import Phase
from swarm.types import PeerId

TRACES = 1000
"""Peers, as many as SwarmState has rows for."""

MARKS = 8
"""Rounds, steps and snaps kept of a peer: enough to see a habit."""

SLOT = 4.0
"""Seconds of verdicts that are counted together."""

SLOTS = 15
"""Slots kept: together the minute by which a sampler is judged."""

VERSIONS = 64
"""Releases and steps that are remembered one by one."""

STRETCH = 20
"""Versions over which a mean reward is compared with the best one: a single batch's reward varies by several
percent."""

SENDERS = 128
"""Most peers with refused frames, and most open faults; further ones appear in the events only."""

FRAMES = 16
"""Refused frames of a sender that are remembered."""

PAUSE = 2.0
"""Seconds without any heartbeat after which this peer itself may have been paused: the shortest pace in use
has a heartbeat every second."""


@dataclass(slots=True)
class Trace:
    """One peer's events since it last started."""

    first: float
    """Time of its first event."""
    incarnation: int = -1
    phase: Phase = Phase.UNKNOWN
    since: float = 0.0
    """When it entered that phase, or that version in it."""
    version: int = -1
    done: int = 0
    worked: float = 0.0
    """When `done` last grew."""
    behind: float | None = None
    """Learner: since when it tries to load a newer release."""
    steps: deque[float] = field(default_factory=lambda: deque(maxlen=MARKS))
    rounds: deque[tuple[float, frozenset[PeerId]]] = field(default_factory=lambda: deque(maxlen=MARKS))
    snaps: deque[float] = field(default_factory=lambda: deque(maxlen=MARKS))
    verdicts: deque[tuple[float, dict[str, int]]] = field(default_factory=lambda: deque(maxlen=SLOTS))
    """Sampler: (start of a slot, its groups by verdict)."""
    refused: float = 0.0
    """When one of its groups was last refused, or expired."""
    coming: tuple[int, int] | None = None
    """(version, bytes that are here) of its download."""
    arrived: float = 0.0
    """When these bytes last grew."""
    together: int = 1
    """Learners that shared its last step."""

    def at(self, phase: Phase, version: int, now: float) -> None:
        if (phase, version) != (self.phase, self.version):
            self.phase, self.version, self.since = phase, version, now

    def count(self, verdicts: dict[str, int], now: float) -> None:
        if not self.verdicts or now - self.verdicts[-1][0] > SLOT:
            self.verdicts.append((now, {}))
        slot = self.verdicts[-1][1]
        for verdict, groups in known_verdicts(verdicts).items():
            slot[verdict] = slot.get(verdict, 0) + groups
            self.refused = now if verdict != "admit" else self.refused


@dataclass(slots=True)
class VersionStep:
    """One version's training: means over its learners that have a figure, weighted by their groups."""

    sums: dict[str, tuple[float, float]] = field(default_factory=dict)
    """Metric -> groups of the learners that have it, and its sum over them."""

    def add(self, name: str, groups: float, value: float) -> None:
        counted, total = self.sums.get(name, (0.0, 0.0))
        self.sums[name] = counted + groups, total + groups * value

    def mean(self, name: str) -> float | None:
        if name not in self.sums:
            return None
        groups, total = self.sums[name]
        return total / groups


@dataclass(slots=True)
class AveragedRound:
    """A round of averaging, as its members reported it."""

    at: float
    members: set[PeerId] = field(default_factory=set)
    scaled: dict[PeerId, float] = field(default_factory=dict)
    """Learner -> factor, where its gradient was scaled down."""


@dataclass(slots=True)
class OpenFault:
    since: float
    last: float
    detail: str


@dataclass(slots=True)
class Parted:
    """A line of versions that does not count any more."""

    since: int
    """The last version that both lines have."""
    first: str
    """Weights of the version after it."""
    version: int = 0
    """At which the other line was taken."""
    versions: int = 0
    groups: int = 0
    last: float = 0.0
    """When a learner last reported it."""
    learners: dict[PeerId, None] = field(default_factory=dict)


@dataclass(slots=True)
class Distrust:
    """Refused frames of one sender."""

    kind: str = ""
    reason: str = ""
    revoked: bool = False
    """This window itself refused one since its sender was revoked."""
    marks: deque[float] = field(default_factory=lambda: deque(maxlen=FRAMES))


class StepSeconds(NamedTuple):
    """How long a learner's step took, by phase."""

    gather: float
    learn: float
    average: float
    step: float


class Recent:
    """Recent events, as the diagnosis reads them; only `take` changes it."""

    METRICS = ("reward", "kl", "ess", "zero", "flat", "grad_norm", "lag_versions", "length")
    """Metrics of Trained that the rules about learning read."""

    def __init__(self) -> None:
        self.clock: float | None = None
        """The newest arrival; None before any event."""
        self.began = 0.0
        self.beating = False
        """A heartbeat was received, so silence can be measured."""
        self.pause = (0.0, 0.0)
        """(end, seconds) of the last long stretch without any heartbeat."""
        self.me: PeerId | None = None
        """The peer that folds these events, when it is one of the swarm."""
        self.traces: dict[PeerId, Trace] = {}
        self.releases: dict[int, float] = {}
        """Newest versions -> arrival of their release."""
        self.first: deque[float] = deque(maxlen=STRETCH)
        """Seconds from releases to the first sampler that had them."""
        self._fetched = -1
        self.steps: dict[int, VersionStep] = {}
        """By version, the newest ones."""
        self.best: float | None = None
        """Highest mean reward of STRETCH versions in a row."""
        self.start: float | None = None
        """The first such mean."""
        self.averaging: deque[float] = deque(maxlen=STRETCH)
        """Seconds of the last rounds."""
        self.spent: deque[StepSeconds] = deque(maxlen=4 * STRETCH)
        """Of the last steps, but for those to version 1, which wait for all peers to come."""
        self.averaged: deque[float] = deque(maxlen=VERSIONS)
        self.broken: deque[tuple[float, PeerId, str]] = deque(maxlen=VERSIONS)
        """(when, learner, reason)."""
        self.means: dict[int, AveragedRound] = {}
        """By version, the newest rounds of averaging."""
        self.faults: dict[tuple[PeerId, str], OpenFault] = {}
        """(peer, part) -> a fault that has not recovered."""
        self.distrust: dict[PeerId, Distrust] = {}
        self.suspended: dict[PeerId, tuple[PeerId, Suspension]] = {}
        """Samplers whose groups did not match their claims, by the last learner that reported it."""
        self.left_out: dict[tuple[PeerId, PeerId], Suspension] = {}
        """(learner, another one that leaves it out of its means) -> since when, until when, why."""
        self.unreached: dict[tuple[PeerId, PeerId], tuple[float, int]] = {}
        """(learner, another that it does not meet) -> when it last reported that, rounds in a row."""
        self.forks: dict[tuple[int, str], Parted] = {}
        """By the values that its learners agree on, the latest ones."""

    def take(self, event: happened.Event) -> None:
        """Record one event."""
        heard = isinstance(event, happened.Heard)
        if heard or not self.beating:
            self._tick(event.at, heard)
        notice = _NOTICES.get(type(event))
        if notice is not None:
            notice(self, event, self.clock if self.clock is not None else event.at)

    def _tick(self, at: float, heard: bool) -> None:
        if (heard and not self.beating) or self.clock is None:
            self.beating, self.began = heard, at
        elif (gap := at - self.clock) > PAUSE and (2 * gap > self.pause[1] or at - self.pause[0] > 600.0):
            # A much shorter pause, such as the usual gap between heartbeats, does not replace a long one.
            self.pause = (at, gap)
        self.clock = at

    def trace(self, peer: PeerId, now: float) -> Trace:
        known = self.traces.pop(peer, None) or Trace(now, since=now, worked=now)
        self.traces[peer] = known  # the peer that has been silent for longest is first, and is dropped first
        if len(self.traces) > TRACES:
            del self.traces[next(iter(self.traces))]
        return known

    def _heard(self, event: happened.Heard, now: float) -> None:
        beat, peer = event.beat, event.subject
        if event.peer == peer:
            self.me = peer
        trace = self.trace(peer, now)
        if beat.incarnation > trace.incarnation:
            if trace.incarnation >= 0:
                del self.traces[peer]
                trace = self.trace(peer, now)
                self._drop_faults(peer)
            trace.incarnation = beat.incarnation
        trace.at(beat.phase, int(number(beat.version, low=-1)), now)
        fetching = beat.fetching
        coming = (fetching.version, fetching.held) if fetching is not None else None
        if coming is not None and coming != trace.coming:
            trace.arrived = now
        trace.coming = coming
        done = int(number(beat.done))
        if done != trace.done:
            trace.done, trace.worked = done, now

    def _moved(self, event: happened.Moved, now: float) -> None:
        trace = self.trace(event.peer, now)
        trace.at(Phase(event.state), int(number(event.version, low=-1)), now)
        if event.cause == "ahead seen" and trace.behind is None:
            trace.behind = now
        elif event.cause in ("loaded", "stepped", "stepped as publisher"):
            trace.behind = None

    def _counted(self, event: happened.Counted, now: float) -> None:
        for sampler, verdicts in event.samplers.items():
            if (trace := self.traces.get(PeerId(sampler))) is not None:
                trace.count(verdicts, now)

    def _averaged(self, event: happened.Averaged, now: float) -> None:
        self.averaged.append(now)
        self.averaging.append(number(event.seconds))
        self.trace(event.peer, now).rounds.append((now, frozenset(event.members[:64])))
        for peer in event.members[:64]:
            self.unreached.pop((event.peer, peer), None)
        mean = self.means.setdefault(event.version, AveragedRound(now))
        mean.members.update(event.members[:64])
        for peer, share in list(event.scaled.items())[:MARKS]:
            mean.scaled[peer] = min(mean.scaled.get(peer, 1.0), number(share, high=1.0))
        while len(self.means) > VERSIONS:
            del self.means[next(iter(self.means))]

    def _broke(self, event: happened.RoundBroke, now: float) -> None:
        self.broken.append((now, event.peer, clean(event.reason, 120)))

    def _trained(self, event: happened.Trained, now: float) -> None:
        trace = self.trace(event.peer, now)
        trace.steps.append(now)
        trace.together, trace.behind = int(number(event.members)), None
        if event.version > 1:
            self.spent.append(StepSeconds(*(number(getattr(event, phase)) for phase in StepSeconds._fields)))
        if not 0 <= event.version < LARGEST:
            return
        step = self.steps.get(event.version)
        if step is None:
            if len(self.steps) >= VERSIONS and event.version < min(self.steps):
                return  # too late to count
            step = self.steps[event.version] = VersionStep()
            self._close_stretch()
        groups = max(number(event.groups), 1.0)
        for name in self.METRICS:
            if name in event.metrics:
                step.add(name, groups, number(event.metrics[name], low=-1e12, high=1e12))

    def _close_stretch(self) -> None:
        """Begin a version: those before it are complete."""
        rewards = self.metric("reward", STRETCH + 1)[-STRETCH:]
        if len(rewards) == STRETCH:
            mean = fmean(rewards)
            self.start = mean if self.start is None else self.start
            self.best = mean if self.best is None else max(self.best, mean)
        if len(self.steps) > VERSIONS:
            del self.steps[min(self.steps)]

    def metric(self, name: str, most: int = VERSIONS) -> list[float]:
        """Means of the newest versions, oldest first; some learners' reports of the last one may be
        missing."""
        newest = sorted(self.steps)[-most:]
        return [mean for version in newest if (mean := self.steps[version].mean(name)) is not None]

    def _released(self, event: happened.Released, now: float) -> None:
        version = event.release.version
        if version in self.releases or not 0 <= version < LARGEST:
            return
        self.releases[version] = event.at if event.peer == self.me else now
        if len(self.releases) > VERSIONS:
            del self.releases[min(self.releases)]

    def _adopted(self, event: happened.Adopted, now: float) -> None:
        released = self.releases.get(event.version)
        if event.version > self._fetched and released is not None:
            self._fetched = event.version
            self.first.append(max(now - released, 0.0))

    def _snapped(self, event: happened.Snapped, now: float) -> None:
        self.trace(event.peer, now).snaps.append(now)

    def _unreached(self, event: happened.Unreached, now: float) -> None:
        self.unreached.pop((event.peer, event.subject), None)
        self.unreached[event.peer, event.subject] = (now, int(number(event.rounds)))
        if len(self.unreached) > SENDERS:
            del self.unreached[next(iter(self.unreached))]

    def _forked(self, event: happened.Forked, now: float) -> None:
        since, first = int(number(event.since)), clean(event.first, 64)
        fork = self.forks.pop((since, first), None) or Parted(since, first)
        fork.versions = max(fork.versions, int(number(event.versions)))
        fork.groups = max(fork.groups, int(number(event.groups)))
        fork.version, fork.last = int(number(event.version)), now
        if len(fork.learners) < MARKS:
            fork.learners[event.peer] = None
        self.forks[since, first] = fork
        if len(self.forks) > MARKS:
            del self.forks[next(iter(self.forks))]

    def _faulted(self, event: happened.Faulted, now: float) -> None:
        key, detail = (event.peer, clean(event.part)), clean(event.detail, 160)
        known = self.faults.pop(key, None)
        self.faults[key] = OpenFault(known.since if known else now, now, detail)
        if len(self.faults) > SENDERS:
            del self.faults[next(iter(self.faults))]

    def _recovered(self, event: happened.Recovered, now: float) -> None:
        self.faults.pop((event.peer, clean(event.part)), None)

    def _drop_faults(self, peer: PeerId) -> None:
        """Drop the faults of a peer that started again or left."""
        for key in [key for key in self.faults if key[0] == peer]:
            del self.faults[key]

    def _came_or_left(self, event: happened.Event, now: float) -> None:
        self._drop_faults(event.peer)
        if event.peer == self.me and isinstance(event, happened.Started):
            self.began = event.at  # nothing was received between its two lives

    def _audited(self, event: happened.Audited, now: float) -> None:
        if (until := number(event.until)) > now:
            self._suspend(event.sampler, event.peer, now, until, event.why, event.group)

    def _set_aside(self, event: happened.SetAside, now: float) -> None:
        (by, before), until = self.suspended.pop(event.sampler, ("", Suspension(0.0))), number(event.until)
        group = event.group or (before.evidence if by == event.by else "")
        if until > now:
            self._suspend(event.sampler, event.by, now, until, event.why, group)

    def _suspend(self, sampler: PeerId, by: PeerId, now: float, until: float, why: str, group: str) -> None:
        self.suspended.pop(sampler, None)
        self.suspended[sampler] = by, Suspension(until, why=clean(why, 240), since=now, evidence=group)
        for each in [*self.suspended][:-SENDERS]:
            del self.suspended[each]

    def _left_out(self, event: happened.LeftOut, now: float) -> None:
        if (until := number(event.until)) > now and event.learner != event.peer:
            key = event.learner, event.peer
            before = self.left_out.pop(key, None)
            since = before.since if before is not None else now
            self.left_out[key] = Suspension(until, why=clean(event.why, 240), since=since)
            if len(self.left_out) > SENDERS:
                del self.left_out[next(iter(self.left_out))]

    def _rejected(self, event: happened.Rejected, now: float) -> None:
        if event.sender == event.peer:
            return
        self.distrust[event.sender] = known = self.distrust.pop(event.sender, None) or Distrust()
        known.kind, known.reason = clean(event.kind), clean(event.reason, 120)
        known.revoked |= event.peer == self.me and WAS_REVOKED in event.reason
        known.marks.append(now)
        if len(self.distrust) > SENDERS:
            del self.distrust[next(iter(self.distrust))]


_NOTICES: dict[type[happened.Event], Callable[..., None]] = {
    happened.Heard: Recent._heard,
    happened.Moved: Recent._moved,
    happened.Counted: Recent._counted,
    happened.Averaged: Recent._averaged,
    happened.RoundBroke: Recent._broke,
    happened.Unreached: Recent._unreached,
    happened.Trained: Recent._trained,
    happened.Released: Recent._released,
    happened.Adopted: Recent._adopted,
    happened.Snapped: Recent._snapped,
    happened.Forked: Recent._forked,
    happened.Faulted: Recent._faulted,
    happened.Recovered: Recent._recovered,
    happened.Started: Recent._came_or_left,
    happened.Left: Recent._came_or_left,
    happened.Audited: Recent._audited,
    happened.SetAside: Recent._set_aside,
    happened.LeftOut: Recent._left_out,
    happened.Rejected: Recent._rejected,
}
