"""Everything a window shows, folded from events.

    event -> fold(state, event) -> state.view(now) -> page, terminal, JSON

`fold` is pure bookkeeping: no clock, no I/O, the same events give the same state whether they come live or from a journal.
Memory is bounded whatever the events say: so many peers, curves, points, lines. Every change has a revision number, so that
`view(now, since)` tells a reader who has revision `since` only what is newer; a change that cannot be told that way (a thinned
curve, a dropped peer) makes the next view a full one. Strings and numbers of peers are cleaned here, once.

Verdicts are counted from Counted alone, which every learner emits for all of its groups; Judged, which only the learner's own
journal has, is told as a sentence. Not handled here: whether a sender may say what it says (the roles check that).
"""

from __future__ import annotations

import math
import re
from collections import Counter, deque
from collections.abc import Callable, Mapping

from dashboard.agreement import Agreement
from dashboard.peer import Peer
from dashboard.sentences import Line, News, tell
from dashboard.series import Series
from dashboard.text import LARGEST, clean, duration, number
from swarm import events as happened
from swarm.config import Run
from swarm.identity import human_name
from swarm.types import PeerId, Release, Role, Verdict

PEERS = 1000
# Rows that a browser still scrolls well; the one that was silent for longest makes room.
LINES = 200
CURVES = 48
# Names come from the metrics of learners: more than any objective reports.
RELEASES = 512
# Versions whose release time is known, so that a peer's lag in seconds is: beyond any admission window in use.
RECENT = 6
# Lines among which the same news again is counted instead of told.

_CURVE_NAME = re.compile(r"[a-z][a-z0-9_]{0,31}")


class State:
    """Changed by `fold` alone."""

    def __init__(self, run: Run | None = None) -> None:
        self.run = run or Run()
        self.revision = 0
        self.last = 0.0
        """Unix seconds of the newest event."""
        self.peers: dict[PeerId, Peer] = {}
        """Whoever was silent for longest comes first."""
        self.releases: dict[int, Release] = {}
        self.accuracies: dict[str, tuple[int, float]] = {}
        """`first` and `last`: (version, held-out accuracy)."""
        self.verdicts: Counter[str] = Counter()
        self.lag_versions: Counter[int] = Counter()
        """Lag at training in versions -> groups."""
        self.lag_seconds: Counter[float] = Counter()
        """Age at training in seconds, as the upper bound of a power of two -> groups."""
        self.series: dict[str, Series] = {}
        self.lines: deque[Line] = deque(maxlen=LINES)
        self.agreement = Agreement()
        self.trained = 0
        """Groups in all optimizer steps."""
        self.members: tuple[PeerId, ...] = ()
        """Of the last averaging round."""
        self._told = 0
        self._reset = 0
        """Revision of the last change that only a full view can tell."""

    @property
    def newest(self) -> Release | None:
        return self.releases[max(self.releases)] if self.releases else None

    @property
    def version(self) -> int:
        """The newest release's; before any was seen, the newest that a peer claims to use."""
        return max(self.releases) if self.releases else max((peer.version for peer in self.peers.values()), default=0)

    def name(self, peer: PeerId) -> str:
        known = self.peers.get(peer)
        return known.name if known else human_name(peer)

    def alive(self, role: Role, now: float) -> list[Peer]:
        patience = self.run.pace.patience
        return [peer for peer in self.peers.values() if peer.role is role and peer.status(now, patience) == "alive"]

    def rows(self, now: float, since: int = 0) -> list[dict[str, object]]:
        """Peers changed after revision `since`, by role and name."""
        order = {role: place for place, role in enumerate((Role.LEARNER, Role.SAMPLER, Role.EVALUATOR, Role.SEED, Role.OBSERVER))}
        changed = [peer for peer in self.peers.values() if peer.revision > since]
        return [self._row(peer, now) for peer in sorted(changed, key=lambda peer: (order[peer.role], peer.name, peer.id))]

    def events(self, since: int = 0) -> list[dict[str, object]]:
        """Sentences told or repeated after revision `since`, oldest first."""
        return [line.row() for line in self.lines if line.revision > since]

    def head(self, now: float) -> dict[str, object]:
        learners, samplers, newest = self.alive(Role.LEARNER, now), self.alive(Role.SAMPLER, now), self.newest
        reward = self.series.get("reward")
        return {
            "version": self.version, "released": newest.released if newest else None,
            "age": max(now - newest.released, 0.0) if newest else None,
            "weights": newest.weights[:12] if newest else None, "trained": self.trained,
            "reward": reward.last() if reward else None, "accuracy": self.accuracies,
            "roles": {str(role): [len(self.alive(role, now)), self._known(role)] for role in Role if self._known(role)},
            "groups_per_second": sum(peer.rate for peer in learners), "tokens_per_second": sum(peer.tokens for peer in samplers),
            "busy": sum(peer.busy for peer in learners) / len(learners) if learners else None,
        }  # fmt: skip

    def view(self, now: float, since: int = 0) -> dict[str, object]:
        """What changed after revision `since` as JSON-able values; everything for 0, or when `full` says so."""
        full = since < self._reset or since == 0 or since > self.revision
        start = 0 if full else since
        return {
            "full": full, "revision": self.revision, "now": now, "last": self.last, "run": self._run(), "head": self.head(now),
            "peers": self.rows(now, start), "verdicts": dict(self.verdicts), "lag": self.lags(),
            "agreement": self.agreement.view(), "events": self.events(start),
            "series": {name: points for name, curve in self.series.items() if (points := curve.points(start))},
        }  # fmt: skip

    def lags(self) -> dict[str, list[tuple[float, int]]]:
        return {"versions": sorted(self.lag_versions.items()), "seconds": sorted(self.lag_seconds.items())}

    def _run(self) -> dict[str, object]:
        run = self.run
        return {
            "name": clean(run.name), "task": clean(run.task.name), "model": clean(run.model.name),
            "objective": clean(run.objective.name), "private": run.private, "patience": run.pace.patience,
            "window": {"versions": run.window.versions, "seconds": run.window.seconds},
        }  # fmt: skip

    def _row(self, peer: Peer, now: float) -> dict[str, object]:
        release = self.releases.get(peer.version)
        return peer.row(now, self.run.pace.patience, self.version, release.released if release else None)

    def _known(self, role: Role) -> int:
        return sum(peer.role is role and peer.gone != "left" for peer in self.peers.values())

    def say(self, at: float, news: News) -> None:
        recent = list(self.lines)[-RECENT:]
        same = next((line for line in recent if line.news.key == news.key), None)
        if same is None:
            self._told += 1
            self.lines.append(Line(self._told, at, news, 1, self.revision))
        else:
            self.lines.remove(same)
            self.lines.append(Line(same.id, at, news, same.count + 1, self.revision))

    def touch(self, peer_id: PeerId, at: float) -> Peer:
        """The row of a peer that said something at `at`."""
        peer = self.peers.pop(peer_id, None) or Peer(peer_id)
        self.peers[peer_id] = peer
        if len(self.peers) > PEERS:
            del self.peers[next(iter(self.peers))]
            self._reset = self.revision
        if not peer.beating:
            peer.heard = max(peer.heard, at)
        peer.revision = self.revision
        return peer

    def plot(self, name: str, version: int, value: float, weight: float = 1.0) -> None:
        """A point of a curve. Values that are no numbers and names beyond the limit are left out."""
        if not math.isfinite(value) or not 0 <= version < LARGEST or not _CURVE_NAME.fullmatch(name):
            return
        if name not in self.series and len(self.series) >= CURVES:
            return
        if self.series.setdefault(name, Series()).add(version, value, weight, self.revision):
            self._reset = self.revision


def fold(state: State, event: happened.Event) -> None:
    """Take one event into the state."""
    state.revision += 1
    state.last = max(state.last, event.at)
    take = _FOLDS.get(type(event))
    if take is not None:
        take(state, event)
    news = tell(event, state.name)
    if news is not None:
        state.say(event.at, news)


def _started(state: State, event: happened.Started) -> None:
    known = state.peers.get(event.peer)
    again = known is not None and known.introduced
    if known is None or known.gone or again:
        _join(state, event.peer, event.at, clean(event.name) or human_name(event.peer), event.role, again)
    peer = state.touch(event.peer, event.at)
    peer.name, peer.role, peer.gone = clean(event.name) or human_name(event.peer), event.role, ""
    peer.version, peer.hardware, peer.since = int(number(event.version)), clean(event.hardware, 80), number(event.at)
    peer.introduced = True


def _join(state: State, peer: PeerId, at: float, name: str, role: Role, again: bool = False) -> None:
    state.say(at, News(f"joined {peer}", "info", f"{name} {'started again' if again else 'is here'}: {role}."))


def _left(state: State, event: happened.Left) -> None:
    state.touch(event.peer, event.at).gone = "left"


def _heard(state: State, event: happened.Heard) -> None:
    known = state.peers.get(event.subject)
    if known is not None and known.gone == "left" and event.beat.incarnation <= known.order[0]:
        return  # gossip delivers the last beats of a peer after its farewell
    fresh = known is None
    peer = state.touch(event.subject, event.at)
    if not peer.hear(event.beat, event.at):
        return
    if fresh:
        _join(state, peer.id, event.at, peer.name, peer.role)
    elif peer.gone:
        state.say(event.at, News(f"back {peer.id}", "info", f"{peer.name} is back."))
    peer.gone = ""
    if peer.role is Role.LEARNER:
        state.agreement.show(peer.version, peer.id, event.beat.weights)


def _lost(state: State, event: happened.Lost) -> None:
    peer = state.peers.get(event.subject)
    if peer is not None and not peer.gone:
        peer.gone, peer.revision = "lost", state.revision


def _counted(state: State, event: happened.Counted) -> None:
    state.verdicts.update(_verdicts(event.verdicts))
    for sampler, verdicts in event.samplers.items():
        peer = state.peers.get(PeerId(sampler))
        if peer is not None:
            peer.verdicts.update(_verdicts(verdicts))
            peer.revision = state.revision
    for lag, groups in event.versions.items():
        if lag.isdecimal() and len(lag) < 10:
            state.lag_versions[min(int(lag), 1024)] += int(number(groups))
    for bound, groups in event.seconds.items():
        try:
            power = math.ceil(math.log2(number(float(bound), 2**-4, 2**20)))
        except ValueError:
            continue
        state.lag_seconds[2.0**power] += int(number(groups))


def _verdicts(counts: Mapping[str, int]) -> dict[str, int]:
    return {verdict: int(number(counts[verdict])) for verdict in map(str, Verdict) if counts.get(verdict)}


def _moved(state: State, event: happened.Moved) -> None:
    peer = state.touch(event.peer, event.at)
    peer.state = clean(event.state).lower()


def _averaged(state: State, event: happened.Averaged) -> None:
    state.plot("average_seconds", event.version, event.seconds)
    members = tuple(sorted(event.members))[:64]
    if state.members and members != state.members:
        names = clean(", ".join(state.name(member) for member in members), 200)
        text = f"{len(members)} learners now average in {duration(event.seconds)}: {names}."
        state.say(event.at, News("members", "info", text))
    state.members = members


def _trained(state: State, event: happened.Trained) -> None:
    peer = state.touch(event.peer, event.at)
    peer.version = max(peer.version, int(number(event.version)))
    groups = int(number(event.groups))
    state.trained += groups
    for name, value in (event.metrics | {"groups": float(groups), "members": float(event.members)}).items():
        state.plot(name, event.version, value, weight=max(groups, 1))


def _released(state: State, event: happened.Released) -> None:
    release = event.release
    if not 0 <= release.version < LARGEST:
        return
    known = state.releases.get(release.version)
    if known is None or known.groups < release.groups:
        state.releases[release.version] = release
    while len(state.releases) > RELEASES:
        del state.releases[min(state.releases)]


def _adopted(state: State, event: happened.Adopted) -> None:
    peer = state.touch(event.peer, event.at)
    peer.version = int(number(event.version))
    if peer.role is Role.LEARNER:
        state.agreement.show(peer.version, peer.id, event.weights)


def _snapped(state: State, event: happened.Snapped) -> None:
    state.agreement.show(event.version, event.peer, event.theirs)


def _evaluated(state: State, event: happened.Evaluated) -> None:
    accuracy = number(event.accuracy, high=1.0)
    state.plot("accuracy", event.version, accuracy, weight=max(number(event.tasks), 1.0))
    first, last = state.accuracies.get("first"), state.accuracies.get("last")
    if first is None or event.version < first[0]:
        state.accuracies["first"] = (event.version, accuracy)
    if last is None or event.version >= last[0]:
        state.accuracies["last"] = (event.version, accuracy)


_FOLDS: dict[type[happened.Event], Callable[..., None]] = {
    happened.Started: _started, happened.Left: _left, happened.Heard: _heard, happened.Lost: _lost, happened.Counted: _counted,
    happened.Moved: _moved, happened.Averaged: _averaged, happened.Trained: _trained, happened.Released: _released,
    happened.Adopted: _adopted, happened.Snapped: _snapped, happened.Evaluated: _evaluated,
}  # fmt: skip
