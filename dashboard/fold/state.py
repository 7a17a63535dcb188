"""The SwarmState: everything that the dashboard shows, folded from events.

    event -> fold(state, event) -> SwarmState -> diagnosis, dashboard, terminal, JSON, metrics

Only dashboard.fold.folds changes it. Each concern is a part of its own, with its inputs, its state (bounded,
whatever the events contain) and its view. Every change has a revision number, so that a reader at revision
`since` needs only newer ones; a change that an update cannot carry (a thinned curve) makes the next view a
full one. Strings and numbers of peers are cleaned here, once. Not handled here: problems
(dashboard.diagnosis); the view of all (dashboard.serve.state_view); how a state is saved
(dashboard.fold.snapshot).
"""

from __future__ import annotations

import math
import re
from collections import Counter, deque
from collections.abc import Iterable, Mapping
from itertools import chain

from dashboard import views
from dashboard.fold.bounds import BOUNDS, Bounds
from dashboard.fold.parts import pulse
from dashboard.fold.parts.agreement import VersionDigests
from dashboard.fold.parts.evaluations import Evaluations
from dashboard.fold.parts.flows import PeerFlows
from dashboard.fold.parts.heat import Heat
from dashboard.fold.parts.incidents import Incidents
from dashboard.fold.parts.lines import Lines
from dashboard.fold.parts.rounds import LearnerRounds
from dashboard.fold.parts.samples import Samples
from dashboard.fold.parts.series import WIRE as POINTS_AT_ONCE
from dashboard.fold.parts.series import Point, Series
from dashboard.fold.parts.spread import Spreads
from dashboard.fold.parts.tally import VerdictTally
from dashboard.fold.peer import MOVING, PeerRow
from dashboard.fold.recent import Recent
from dashboard.fold.sentences import News
from dashboard.fold.timeline import Timeline
from dashboard.text import LARGEST, clean, moment, proper
from swarm.membership.identity import human_name
from swarm.protocol import ROLES, Role, Topic
from swarm.settings.config import Run, Swarm
from swarm.types import PeerId, Release

CURVES = 48
"""Most curves: names come from learners' metrics, and no objective reports as many."""

SEARCH = 1.0
"""Seconds between two searches of a full table for a row that may give way: half of the usual heartbeat."""

_CURVE_NAME = re.compile(r"[a-z][a-z0-9_-]{0,31}")
_ORDER = {role: place for place, role in enumerate(ROLES)}


class SwarmState:
    """The state of a swarm; only `fold` changes it."""

    def __init__(self, run: Run | None = None, bounds: Bounds = BOUNDS) -> None:
        self.run, self.bounds = run or Run(), bounds
        self.starts: Mapping[Role, int] = {}
        """Peers, by role, that the command starts beside this window which began it."""
        self.revision = 0
        self.timeline = Timeline()
        self.peers: dict[PeerId, PeerRow] = {}
        """Peers, the one that has been silent for longest first."""
        self.releases: dict[int, Release] = {}
        self.accuracies: dict[str, tuple[int, float]] = {}
        """`first` and `last`: (version, held-out accuracy)."""
        self.series: dict[str, Series] = {}
        self.pulse, self.agreement, self.tally, self.rounds, self.flows = (
            pulse.Pulse(),
            VersionDigests(),
            VerdictTally(),
            LearnerRounds(),
            PeerFlows(),
        )
        self.spreads, self.heat = Spreads(self.bounds.peers), Heat(self.bounds.columns)
        self.incidents, self.evaluations = Incidents(), Evaluations()
        self.lines, self.samples = Lines(self.bounds.events), Samples(self.bounds.samples)
        self.members: tuple[PeerId, ...] = ()
        """Members of the last averaging round."""
        self.recent = Recent()
        self.reset = 0
        """Revision of the last change that needs a full view."""
        self._searched: dict[bool, float] = {}
        """For peers that count, and for strangers -> when no row was found that may give way."""
        self._gone: deque[tuple[int, PeerId]] = deque()
        """(revision, peer) of rows that were dropped."""
        self._drawn: dict[str, tuple[int, tuple[Point, ...]]] = {}
        """Curve -> (revision, its points in a full view)."""

    @property
    def last(self) -> float:
        """When the newest event happened."""
        return self.timeline.now

    @property
    def newest(self) -> Release | None:
        return self.releases[max(self.releases)] if self.releases else None

    @property
    def version(self) -> int:
        """Version of the newest release; before the first one, the newest that a peer claims to use."""
        return (
            max(self.releases)
            if self.releases
            else max((peer.version for peer in self.proven() if peer.version >= 0), default=0)
        )

    @property
    def begun(self) -> bool:
        """Whether anything was trained."""
        return self.tally.trained > 0 or self.version > 0

    def name(self, peer: PeerId) -> str:
        known = self.peers.get(peer)
        return known.name if known else human_name(peer) if proper(peer) else clean(peer)

    def counts(self, peer: PeerId) -> bool:
        """Whether a peer counts in this dashboard's figures of the swarm: claims of any other are in its own
        row alone."""
        row = self.peers.get(peer)
        return peer == self.recent.me or (row is not None and row.proven)

    def proven(self) -> list[PeerRow]:
        """The peers that count."""
        return [peer for peer in self.peers.values() if peer.proven or peer.id == self.recent.me]

    def receives(self, role: Role) -> bool:
        """Whether this dashboard receives peers of a role: only observers receive samplers and observers."""
        me = self.peers.get(self.recent.me) if self.recent.me is not None else None
        return me is None or ROLES[me.role].observes or ROLES[role].heartbeat is Topic.BEAT

    def alive(self, role: Role, now: float) -> list[PeerRow]:
        patience = self.run.pace.patience
        return [
            peer
            for peer in self.peers.values()
            if peer.role is role and peer.status(now, patience) == "alive"
        ]

    def ended(self, ids: Iterable[PeerId]) -> None:
        """These peers have ended without announcing it: the process that started them knows, and tells the
        table."""
        for peer in ids:
            row = self.peers.get(peer)
            if row is not None and not row.gone:
                row.gone = "lost"
                row.changed(self.revision)

    # --- views ---------------------------------------------------------------------------------------------

    def tokens(self) -> dict[str, int]:
        """What became of groups -> their tokens, by learners' counts and by samplers' own."""
        return dict(Counter(self.tally.tokens) + Counter(self.tally.wasted))

    def rows(self, now: float, since: int = 0) -> tuple[views.Row, ...]:
        """Peers changed after revision `since`, by role and name."""
        changed = [peer for peer in self.peers.values() if peer.revision > since]
        changed.sort(key=lambda peer: (_ORDER[peer.role], peer.name, peer.id))
        newest = self.version
        return tuple([self._row(peer, now, newest) for peer in changed])

    def row(self, peer_id: PeerId, now: float) -> views.Row | None:
        peer = self.peers.get(peer_id)
        return self._row(peer, now, self.version) if peer else None

    def gone(self, since: int) -> tuple[str, ...]:
        """Peers whose rows were dropped after revision `since` and did not come back."""
        dropped = (peer for revision, peer in self._gone if since and revision > since)
        return tuple(dict.fromkeys(peer for peer in dropped if peer not in self.peers))

    def events(self, since: int = 0, peer: str | None = None) -> tuple[views.SentenceView, ...]:
        """Sentences added or repeated after revision `since`, oldest first; with a peer, those about it."""
        return self.lines.view(since, peer)

    def release_views(
        self, now: float, since: int = 0, most: int | None = None
    ) -> tuple[views.ReleaseView, ...]:
        """The newest release and those that reached a peer after revision `since`, oldest first."""
        patience = self.run.pace.patience
        moving = [
            peer for peer in self.proven() if peer.role in MOVING and peer.status(now, patience) == "alive"
        ]
        using = Counter(peer.version for peer in moving)
        shown = sorted(self.releases)[-(most or self.bounds.releases) :]
        fresh = [
            version
            for version in shown
            if not since or version == shown[-1] or self.spreads.changed(version) > since
        ]
        return tuple(self.spreads.view(self.releases[version], using, len(moving)) for version in fresh)

    def points(self, name: str, since: int = 0) -> tuple[Point, ...]:
        """Points of a curve that changed after revision `since`; as many of all as a full view has when it is
        0."""
        curve = self.series[name]
        if since:
            return curve.points(since)
        changed, points = self._drawn.get(name, (-1, ()))
        if changed != curve.changed:
            points = curve.points(0, POINTS_AT_ONCE)
            self._drawn[name] = curve.changed, points
        return points

    def _row(self, peer: PeerRow, now: float, newest: int) -> views.Row:
        release = self.releases.get(peer.version)
        released = moment(release.released) if release else None
        share = None
        if peer.role is Role.SAMPLER and (groups := self.tally.verdicts.get("admit")):
            share = min(peer.admitted / groups, 1.0)
        elif peer.role is Role.LEARNER and self.tally.trained:
            share = min(peer.trained / self.tally.trained, 1.0)
        status = peer.status(now, self.run.pace.patience)
        return peer.row(status, newest, released, share, self.counts(peer.id))

    # --- for the fold ---------------------------------------------------------------------------------------

    def add_line(self, at: float, news: News) -> None:
        self.lines.add(at, news, self.revision)

    def touch(self, peer_id: PeerId, at: float, role: Role | None = None, invited: bool = False) -> PeerRow:
        """The row of a peer that sent something at `at`; it becomes the most recent one. `role` and
        `invited`, where the event has them, decide whether it counts. A row without a place is not kept."""
        peer = self.peers.pop(peer_id, None) or PeerRow(peer_id)
        self.peers[peer_id] = peer
        if len(self.peers) > self.bounds.peers:
            self._drop(self._least(peer, role, invited, at))
        if not peer.beating:
            peer.heard = max(peer.heard, at)
        peer.changed(self.revision)
        return peer

    def at(self, peer: PeerRow, version: int, at: float, age: float | None = None) -> None:
        """Record that `peer` uses `version`; `age`: seconds after the release, when the peer timed it."""
        if peer.role in MOVING and self.counts(peer.id) and peer.gone != "left" and version >= 0:
            self.heat.take(peer.id, max(self.version - version, 0), self.last)
            self.spreads.reach(peer.id, version, at, self.revision, age)

    def plot(self, name: str, x: int, at: float, value: float, weight: float = 1.0) -> None:
        """Add a point to a curve. Values that are no numbers and names beyond the limit are left out."""
        if not math.isfinite(value) or not 0 <= x < LARGEST or not curve_name(name):
            return
        curve = self.series.get(name)
        if curve is None:
            timed = name in pulse.NAMES
            if not timed and len(self.series) >= CURVES:
                return
            curve = self.series[name] = Series(self.bounds.points, "time" if timed else "version")
        if curve.add(x, round(moment(at), 2), value, weight, self.revision):
            self.reset = self.revision

    def _least(self, new: PeerRow, role: Role | None, invited: bool, now: float) -> PeerId:
        """The peer whose row is replaced by a new one: one that left, then a stranger, then the lost one that
        is silent for longest; for a member by its role any other. For a stranger no member's is. Peers that
        are all here stay: else at each heartbeat of a larger swarm one of them would be replaced."""
        member = role is not None and ROLES[role].member
        counts = member or invited or self.counts(new.id)
        if not member and abs(now - self._searched.get(counts, -SEARCH)) < SEARCH:
            return new.id
        others = [
            row for row in self.peers.values() if row is not new and (counts or not self.counts(row.id))
        ]
        left = (row.id for row in others if row.gone == "left")
        strangers = (row.id for row in others if not self.counts(row.id))
        lost = (row.id for row in others if row.status(now, self.run.pace.patience) != "alive")
        ordinary = (row.id for row in others if member and not ROLES[row.role].member)
        if (least := next(chain(left, strangers, lost, ordinary, (new.id,)))) == new.id:
            self._searched[counts] = now
        return least

    def _drop(self, peer: PeerId) -> None:
        if not self.peers.pop(peer).revision:
            return  # a new one, which no reader has seen
        for part in (self.heat, self.spreads, self.rounds):
            part.drop(peer)
        self._gone.append((self.revision, peer))
        if len(self._gone) > self.bounds.peers:
            self.reset = max(self.reset, self._gone.popleft()[0])


def starts(wanted: Swarm) -> Mapping[Role, int]:
    """Peers that `swarm up` starts beside its seed, by role."""
    return {
        Role.LEARNER: wanted.learners,
        Role.SAMPLER: wanted.samplers,
        Role.EVALUATOR: wanted.evaluators,
    }


def curve_name(name: str) -> bool:
    """Whether this can be the name of a curve."""
    return _CURVE_NAME.fullmatch(name) is not None
