"""One row of the peer table: the facts about a peer, from its heartbeats and from other peers' events.

Everything in a heartbeat is the peer's own claim; verdicts on its groups, its answer times and the error of
its clock were counted and timed by others. Strings and numbers are cleaned on the way in. Whether a peer is
`lost` is decided in `status` only: by a roster's Lost event, or by silence for longer than the run's
patience.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cached_property

import msgspec

from dashboard.text import clean, moment, number, proper, version_of, whole
from dashboard.views import Causes, Claims, FetchView, ProgressView, Row, Status
from swarm.core.beat_pace import granted
from swarm.core.completion import Judged
from swarm.limits import SLOWEST
from swarm.membership.identity import human_name
from swarm.protocol import ROLES, Phase, PolicyUse, Role
from swarm.types import Beat, Fetching, Link, PeerId, StageProgress, Verdict

MOVING = frozenset(
    role
    for role, row in ROLES.items()
    if row.policy in (PolicyUse.TRAINED, PolicyUse.SAMPLED, PolicyUse.USED)
)
"""Roles that use the policy, so that a version lag means something."""

CLOCKS = 5
"""Heartbeats whose median is the error of a clock: one that was delayed does not change it."""

RTT_LASTS = 60.0
"""Seconds until a slower answer replaces a faster one: routes change."""

LONGEST = 86400.0
"""Seconds of a delay: larger claims are clipped, since no admission window in use is as long."""


class PeerRow(msgspec.Struct, dict=True):
    """A peer's row; only the fold changes it, and calls `changed` first."""

    id: PeerId
    name: str = ""
    """Name for people: it follows from the id, so that it cannot be taken by another peer."""
    label: str = ""
    """The peer's own label, where that is something else."""
    role: Role = Role.OBSERVER
    state: str = ""
    phase: Phase = Phase.UNKNOWN
    version: int = -1
    """-1: it has none yet."""
    since: float | None = None
    """Unix seconds of its start, by its own clock."""
    heard: float = 0.0
    """Unix seconds of the last heartbeat, by the receiver's clock; of its last event for a peer without
    heartbeats."""
    beating: bool = False
    """It sends heartbeats, so silence can be measured."""
    slower: float = 1.0
    """How many times as long as the run's pace it waits between them."""
    gone: str = ""
    """`lost` or `left` by an event; else empty."""
    revoked: bool = False
    """It left, or its messages are ignored, since the run's owner revoked it."""
    invited: bool = False
    """A heartbeat showed that the run's owner vouches for it."""
    introduced: bool = False
    """A Started event was folded."""
    order: tuple[int, int] = (-1, -1)
    """(incarnation, sequence number) of the newest heartbeat."""
    credit: int = 0
    inbox: int = 0
    done: int = 0
    refused: int = 0
    rate: float = 0.0
    tokens: float = 0.0
    busy: float = 0.0
    lag: dict[str, float] = {}
    hardware: str = ""
    upload: float = 0.0
    """Mbit/s that its settings let releases and rounds send; 0: no limit."""
    download: float = 0.0
    fetching: FetchView | None = None
    fetched: tuple[float, int] = (0.0, 0)
    """When its download was first heard of, and the bytes that were there."""
    progress: ProgressView | None = None
    coming: tuple[float, int] = (0.0, 0)
    """Mean reward of the groups that this learner last said to have for a version, and their number; 0: it
    said of none."""
    verdicts: dict[str, int] = {}
    """A Counter: groups of this sampler by verdict, and `expired`, counted by the learners."""
    wasted: dict[str, int] = {}
    """One of UNJUDGED -> tokens that the peer reports as wasted, since its start."""
    judged: Judged = (-1.0, 0)
    """Of an evaluator: its last evaluation."""
    trained: int = 0
    """Groups in this learner's optimizer steps."""
    rtt: float | None = None
    """Fastest answer in seconds, as timed by another peer."""
    timed: float = 0.0
    """When that answer was timed."""
    relayed: bool | None = None
    clocks: list[float] = []
    """Its clock minus the receiver's at the last heartbeats."""
    revision: int = 0

    def __post_init__(self) -> None:
        self.name = human_name(self.id)
        self.verdicts = Counter(self.verdicts)

    def call(self, label: str) -> None:
        """Record the peer's own label."""
        label = clean(label)
        self.label = "" if label == self.name else label

    @property
    def admitted(self) -> int:
        return self.verdicts.get(Verdict.ADMIT.value, 0)

    @property
    def proven(self) -> bool:
        """Whether it counts in the dashboard's figures of the swarm: a member, or learners admitted a group
        of it. Other samplers and observers of a public run can be made in any number."""
        return self.invited or ROLES[self.role].member or self.admitted > 0

    @property
    def skew(self) -> float | None:
        """Its clock minus the receiver's clock; None until enough heartbeats were received."""
        return sorted(self.clocks)[CLOCKS // 2] if len(self.clocks) == CLOCKS else None

    def receive(self, beat: Beat, at: float) -> bool:
        """Record a heartbeat that was received at `at`. False when it is older than the newest one."""
        self.heard = max(self.heard, at) if self.beating else at
        self.beating = True
        if (beat.incarnation, beat.seq) <= self.order:
            return False
        self.order = (whole(beat.incarnation), whole(beat.seq))
        self.call(beat.name)
        self.role, self.phase = beat.role, beat.phase
        self.state, self.hardware = clean(beat.state), clean(beat.hardware, 80)
        self.since = moment(self.order[0] / 1000)
        self.version = version_of(beat.version)
        self.credit, self.inbox = whole(beat.credit), whole(beat.inbox)
        self.done, self.refused = whole(beat.done), whole(beat.refused)
        self.rate, self.tokens, self.busy = (
            number(beat.rate),
            number(beat.tokens),
            number(beat.busy, high=1.0),
        )
        self.upload, self.download, self.slower = number(beat.upload), number(beat.download), granted(beat)
        self._fetch(beat.fetching, at)
        self.progress = told = _progress_view(beat.progress, at)
        if told is not None and told.reward is not None:
            self.coming = told.reward, max(told.done, 1)
        self.wasted = known(beat.wasted, UNJUDGED)
        self.judged = beat.accuracy, beat.judged
        self.lag = {cause: _delay(getattr(beat.lag, cause)) for cause in Causes.__struct_fields__}
        self.clocks = [*self.clocks[1 - CLOCKS :], round(moment(beat.at) - at, 3)]
        return True

    def _fetch(self, told: Fetching | None, at: float) -> None:
        """Record a download; its pace is what this side has seen of it."""
        if told is None:
            self.fetching = None
            return
        new, before = _fetch_view(told), self.fetching
        if before is None or (before.version, before.size) != (new.version, new.size):
            self.fetched = at, new.held
        since, held = self.fetched
        if (came := new.held - held) > 0 and at > since:
            new = msgspec.structs.replace(new, ends=at + (new.size - new.held) * (at - since) / came)
        self.fetching = new

    def reached(self, link: Link, at: float) -> None:
        """Record another peer's timing of this one's answers."""
        self.relayed = link.relayed
        if link.rtt > 0 and (self.rtt is None or link.rtt <= self.rtt or at - self.timed > RTT_LASTS):
            self.rtt, self.timed = number(link.rtt, high=1e6), at

    def status(self, now: float, patience: float) -> Status:
        """`alive`, `lost` or `left`."""
        if self.gone:
            return "left" if self.gone == "left" else "lost"
        return "lost" if self.beating and now - self.heard > patience * self.slower else "alive"

    def changed(self, revision: int) -> None:
        """Mark the row as changed at this revision."""
        self.revision = revision
        self.__dict__.clear()  # the cached row

    def row(
        self, status: Status, newest: int, released: float | None, share: float | None, counts: bool
    ) -> Row:
        """The row as a view. `newest`: the newest version; `released`: when the version that it uses was
        released; `counts`: whether it does."""
        moving = self.role in MOVING and self.version >= 0
        return Row(
            id=self.id,
            name=self.name,
            role=self.role.value,
            proven=counts,
            status=status,
            gone=self.gone,
            revoked=self.revoked,
            beating=self.beating,
            slower=self.slower,
            heard=self.heard,
            version=self.version if moving else None,
            lag=max(newest - self.version, 0) if moving else None,
            released=released if moving else None,
            admitted=self.admitted,
            refused={verdict: groups for verdict, groups in self.verdicts.items() if verdict != "admit"},
            trained=self.trained,
            share=share,
            rtt=self.rtt,
            relayed=self.relayed,
            skew=self.skew,
            claims=self.claims,
        )

    @cached_property
    def claims(self) -> Claims:
        return Claims(
            label=self.label,
            state=self.state,
            phase=self.phase,
            hardware=self.hardware,
            since=self.since,
            done=self.done,
            refused=self.refused,
            rate=self.rate,
            tokens=self.tokens,
            busy=self.busy,
            credit=self.credit,
            inbox=self.inbox,
            upload=self.upload,
            download=self.download,
            fetching=self.fetching,
            progress=self.progress,
            causes=Causes(**self.lag),
        )

    def sanitize(self) -> bool:
        """Clip a row from a snapshot to the bounds that a fold keeps. False when it is no valid peer."""
        if not proper(self.id):
            return False
        self.name, self.hardware = human_name(self.id), clean(self.hardware, 80)
        self.call(self.label)
        self.state = clean(self.state)
        self.gone = self.gone if self.gone in ("", "lost", "left") else ""
        self.revoked = self.revoked and self.gone == "left"
        self.heard, self.timed = moment(self.heard), moment(self.timed)
        self.since = None if self.since is None else moment(self.since)
        self.order = (min(max(self.order[0], -1), 2**53), min(max(self.order[1], -1), 2**53))
        self.version = version_of(self.version)
        self.credit, self.inbox = whole(self.credit), whole(self.inbox)
        self.upload, self.download = number(self.upload), number(self.download)
        self.fetching = None if self.fetching is None else _fetch_view(self.fetching)
        self.fetched = moment(self.fetched[0]), whole(self.fetched[1])
        self.progress = None  # of a moment that is past
        self.coming = number(self.coming[0], -1e12, 1e12), whole(self.coming[1])
        self.done, self.refused, self.trained = whole(self.done), whole(self.refused), whole(self.trained)
        self.rate, self.tokens, self.busy = (
            number(self.rate),
            number(self.tokens),
            number(self.busy, high=1.0),
        )
        self.lag = {cause: _delay(self.lag[cause]) for cause in Causes.__struct_fields__ if cause in self.lag}
        self.verdicts = Counter(known_verdicts(self.verdicts))
        self.wasted = known(self.wasted, UNJUDGED)
        self.rtt = None if self.rtt is None else number(self.rtt, high=1e6)
        self.slower = max(1.0, number(self.slower, high=SLOWEST))
        self.clocks = [number(clock, -1e12, 1e12) for clock in self.clocks[-CLOCKS:]]
        return True


def _delay(claimed: float) -> float:
    return number(claimed, high=LONGEST)


def _fetch_view(told: Fetching | FetchView) -> FetchView:
    size = whole(told.size)
    return FetchView(version=whole(told.version), held=min(whole(told.held), size), size=size)


def _progress_view(told: StageProgress | None, at: float) -> ProgressView | None:
    if told is None:
        return None
    total = whole(told.total)
    return ProgressView(
        stage=clean(told.stage),
        done=min(whole(told.done), total),
        total=total,
        ends=at + number(told.left, high=LONGEST) if told.left >= 0 else None,
        reward=None if told.reward is None else number(told.reward, -1e12, 1e12),
    )


VERDICTS = (*map(str, Verdict), "expired")
"""Outcomes of a group that learners count; `expired`: admitted, then too old."""


ENDS = ("trained", *(verdict for verdict in VERDICTS if verdict != Verdict.ADMIT), "flat", "dropped")
"""Outcomes of tokens in groups that learners judge. A refusal for lack of room is none: such a group is sent
again."""

UNJUDGED = ("doomed", Verdict.OVER_QUOTA.value, "undelivered", Verdict.UNSCORED.value)
"""Why no learner judges a sampler's tokens: their call was stopped (as many as by the rate of the one
before), no learner had room in time, none answered in time or it fits no message, no reward is known."""


def known(counts: Mapping[str, int], names: Sequence[str]) -> dict[str, int]:
    """Those of these names among reported counts."""
    return {name: many for name in names if (many := whole(counts.get(name, 0)))}


def known_verdicts(counts: Mapping[str, int]) -> dict[str, int]:
    """The known verdicts among reported counts."""
    return known(counts, VERDICTS)
