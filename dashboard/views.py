"""The views: types of everything that the dashboard shows. The JSON API returns them, the stream sends them,
OpenAPI describes them.

Figures that only the peer itself reports are under `claims`; all others were counted, timed or signed by
other peers or by the one that serves the dashboard. Times are unix seconds, durations seconds, sizes bytes,
rates per second. Ids are peer ids. Strings of peers were cleaned when they were folded. Not handled here: how
a view is made (dashboard.serve.state_view) and sent (dashboard.serve.feed).
"""

from __future__ import annotations

from typing import Literal

import msgspec

Status = Literal["alive", "lost", "left"]
Level = Literal["info", "warning", "error"]


class View(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Base of all views. They are trees without cycles, thousands of them in a full view, so the garbage
    collector skips them."""


class WindowView(View):
    versions: int
    seconds: float


class RunView(View):
    name: str
    task: str
    model: str
    objective: str
    private: bool
    patience: float
    """Seconds of silence before a peer counts as lost."""
    window: WindowView
    """Admission: nothing older is trained on."""
    versions: int
    """Version at which the run is complete; 0: none."""
    accuracy: float
    """Held-out accuracy, 0 to 1, at which it is complete; 0: none."""


class WorkView(View):
    """A stage of the work that takes long now, over all peers that say how far they are in it."""

    stage: str
    """A WorkStage of swarm.protocol."""
    unit: str
    """What is counted."""
    done: int
    total: int
    ends: float | None
    """When the last of these peers is done at its pace; None where that is unknown."""
    peers: int


class PaceView(View):
    """How fast versions come, from the last releases."""

    seconds: float
    """From one version to the next: a mean, which the present one is part of once it takes longer."""
    whole: float | None
    """Seconds of all versions of the run at this pace; None for a run without a last version."""
    ends: float | None
    """When the last version comes at this pace; None where there is none, or it is here."""
    note: str
    """What takes most of that time, and which settings change it most, in a sentence; empty while unknown."""


class EstimateView(View):
    """A measured value, and the ends of its interval of 95 %."""

    value: float
    low: float
    high: float


class JudgedView(View, kw_only=True):
    """Answers to some tasks."""

    accuracy: float
    """Share of right greedy answers, 0 to 1."""
    low: float
    """The lower end of its interval of 95 %: over tasks that might have been drawn instead."""
    high: float
    tasks: int
    sampled: dict[str, EstimateView] = {}
    """`mean@8`, `pass@8` ... of sampled completions."""


class EvaluationView(JudgedView, kw_only=True):
    """An evaluation, of the version that was judged last: answers to held-out tasks."""

    version: int
    sets: dict[str, JudgedView] = {}
    """Evaluation set -> answers to its tasks."""


class HeadView(View):
    """The swarm in a line."""

    version: int
    released: float | None
    age: float | None
    note: str
    """What so few learners are not protected from, in a sentence; empty where they are enough."""
    weights: str | None
    """First 12 digits of the newest release's digest."""
    trained: int
    """Groups in all optimizer steps."""
    reward: float | None
    coming: float | None
    """Mean reward of the groups that have come for the next version, as their learners report it."""
    work: tuple[WorkView, ...]
    """What takes long now, in the order of a version."""
    pace: PaceView | None
    """None before there are some versions, and where no learner is here."""
    first_accuracy: tuple[int, float] | None
    """(version, held-out accuracy) of the first evaluation."""
    last_accuracy: tuple[int, float] | None
    evaluation: EvaluationView | None
    """That of `last_accuracy`, with its interval."""
    roles: dict[str, tuple[int, int]]
    """Role -> (alive, known), of members and of samplers of which a group was admitted; peers that left are
    not counted as known."""
    strangers: int
    """Number of others that claim to be alive; nothing else here depends on their claims."""
    groups_per_second: float
    tokens_per_second: float
    """Trained, as the learners claim."""
    busy: float | None
    """Mean over learners, 0 to 1."""


class Problem(View):
    """Something that is wrong now: what, why, and what to do about it."""

    key: str
    """The same for one problem while it lasts: `lost 12D3...`, `expired 12D3...`, `split`."""
    level: Level
    text: str
    """One sentence: the problem, with names and figures."""
    cause: str
    todo: str
    """The next step for a person."""
    peers: tuple[str, ...] = ()
    since: float | None = None


class Condition(View):
    """The swarm's condition in one line."""

    kind: Literal["ok", "waiting", "info", "warning", "error"]
    """The level of the worst problem; without one `waiting` where nothing is trained, else `ok`."""
    text: str
    """One sentence: the worst problem, or what is awaited, or that all is well."""
    more: int = 0
    """Further problems."""
    join: bool = False
    """The run waits for peers to join."""


class Incident(View):
    """Something that was wrong, or still is."""

    key: str
    """That of the problem."""
    level: Level
    text: str
    """The problem's sentence when it was last found."""
    cause: str
    begin: float
    end: float | None
    """None while it lasts."""
    peers: tuple[str, ...] = ()


class PhaseView(View):
    """Where a learner is in its averaging round."""

    peer: str
    name: str
    state: str
    """gathering, learning, matching, stepping, releasing, catching up, stopped."""
    since: float
    version: int


class RoundView(View):
    """The current averaging round, learner by learner, and the last one that ended."""

    learners: tuple[PhaseView, ...] = ()
    last_version: int | None = None
    last_members: tuple[str, ...] = ()
    last_seconds: float | None = None
    last_at: float | None = None


class Causes(View):
    """Where a group's age comes from; means over the peer's last groups."""

    download: float = 0.0
    queue: float = 0.0
    generation: float = 0.0
    upload: float = 0.0
    inbox: float = 0.0


class FetchView(View):
    """A peer's download: a release, or the patches to one."""

    version: int
    held: int
    """Bytes that are there."""
    size: int
    ends: float | None = None
    """When all are there at its pace; None before that can be seen."""


class ProgressView(View):
    """How far a peer is in a stage of its work that takes long."""

    stage: str
    """A WorkStage of swarm.protocol; another word of a later program."""
    done: int
    total: int
    ends: float | None
    """When it is done at its pace; None where that is unknown."""
    reward: float | None
    """Mean of the groups that have come, of a batch and its gradient."""


class Claims(View):
    """A peer's reports about itself, unverified."""

    label: str
    """Its own label, where that is not its name: a peer may choose any label."""
    state: str
    phase: str
    """A Phase of swarm.protocol; empty for one that this program does not know."""
    hardware: str
    since: float | None
    done: int
    """Groups trained (learner) or sampled (sampler), versions judged (evaluator), groups replayed
    (auditor)."""
    refused: int
    rate: float
    tokens: float
    busy: float
    credit: int
    inbox: int
    upload: float
    """Mbit/s that its settings let releases and rounds send; 0: no limit."""
    download: float
    """Mbit/s that they let them take; 0: no limit."""
    fetching: FetchView | None
    progress: ProgressView | None
    causes: Causes


class Row(View):
    """A peer. Its name follows from its id. An update has the rows of peers that sent something or were
    counted; `status`, `lag` and `share` of the others follow from time, newest release and totals."""

    id: str
    name: str
    role: str
    proven: bool
    """It counts in figures of the swarm; a stranger does not."""
    status: Status
    gone: str
    """`lost` or `left` when an event said so; else the status follows from `heard`."""
    revoked: bool
    """It left since the run's owner revoked it."""
    beating: bool
    """It sends heartbeats, so silence means that something is wrong."""
    slower: float
    """How many times as long as the run's pace it waits between them: its silence is borne in proportion."""
    heard: float
    version: int | None
    """None for roles without a policy, and for a peer that has none yet."""
    lag: int | None
    """Versions behind the newest release."""
    released: float | None
    """When the version that it uses was released."""
    admitted: int
    """Groups of this sampler that learners admitted."""
    refused: dict[str, int]
    """Its groups that learners refused, by verdict; `expired` ones were admitted and grew too old."""
    trained: int
    share: float | None
    """Of a sampler: its part of all admitted groups; of a learner: its part of all trained groups."""
    rtt: float | None
    """Fastest answer in seconds, as timed by another peer."""
    relayed: bool | None
    skew: float | None
    """Its clock minus the receiver's clock, in seconds."""
    claims: Claims


class SentenceView(View):
    """A sentence of the event list."""

    id: int
    at: float
    level: Level
    text: str
    count: int
    """Number of sentences with this key; only the newest is kept."""
    peers: tuple[str, ...]


class ReleaseView(View):
    """A release and how it spreads to peers."""

    version: int
    released: float
    publisher: str
    weights: str
    size: int
    patch: int | None
    """Bytes of the patch from the version before; None where there is none."""
    groups: int
    learners: int
    have: int
    """Peers that are known to have it, or a newer one."""
    of: int
    """Peers alive that use a policy."""
    first: float | None
    median: float | None
    last: float | None
    """Seconds after the release, or after they came where that was later, when the first, the middle and the
    last of `have` had it."""


class FlowView(View):
    """Bytes that pass from one peer to another, as the receiver counted them."""

    source: str
    target: str
    purpose: Literal["rollouts", "weights", "gradients", "other"]
    rate: float
    """Bytes per second; 0 for learners that averaged and did not report bytes."""
    relayed: bool


class TrafficView(View):
    """Bytes received by purpose, over all peers: the total since this history began, and the present rate."""

    total: dict[str, float]
    rate: dict[str, float]


class SampleView(View):
    """One trained group, for people to read."""

    id: str
    at: float
    sampler: str
    learner: str
    version: int
    prompt: str
    answer: str
    completions: tuple[str, ...]
    rewards: tuple[float, ...]
    advantages: tuple[float, ...]
    weights: tuple[float, ...]
    """Importance weights of the completions; empty when the learner did not report them."""


class LagView(View):
    versions: tuple[tuple[float, int], ...]
    """(lag at training in versions, groups)."""
    seconds: tuple[tuple[float, int], ...]
    """(upper bound of the age at training in seconds, groups)."""


class AgreementView(View):
    same: int
    different: int
    version: int | None
    digests: tuple[str, ...]
    learners: int


class Span(View):
    """The times that a replay covers."""

    first: float
    last: float


class StateView(View):
    """Everything the dashboard shows, or what changed of it after a revision."""

    full: bool
    """This view replaces everything the reader has; otherwise it has the peers, events, samples, releases and
    points that changed."""
    revision: int
    now: float
    last: float
    """When the newest event happened."""
    quiet: float
    """Seconds since the last message of another peer; in a replay, since the last event."""
    run: RunView
    head: HeadView
    condition: Condition
    problems: tuple[Problem, ...]
    round: RoundView
    peers: tuple[Row, ...]
    gone: tuple[str, ...]
    """Ids of rows that were dropped since."""
    verdicts: dict[str, int]
    tokens: dict[str, int]
    """Tokens of groups by outcome: `trained`, or the cause of their waste; `doomed`, `over-quota` and
    `undelivered` are samplers' claims."""
    lag: LagView
    agreement: AgreementView
    events: tuple[SentenceView, ...]
    series: dict[str, tuple[tuple[int, float, float], ...]]
    """Curve -> (x, at, value). x is the policy version; for curves that `by_time` names it is unix
    seconds."""
    releases: tuple[ReleaseView, ...]
    flows: tuple[FlowView, ...] | None
    """The largest flows; None in an update that does not change them."""
    traffic: TrafficView
    samples: tuple[SampleView, ...]
    replay: Span | None


class SeriesView(View):
    name: str
    by: Literal["version", "time"]
    points: tuple[tuple[int, float, float], ...]
    """(x, at, value)."""


class HeatView(View):
    """Largest version lag of each peer in each slot of time."""

    slot: float
    """Seconds a column; doubles when the map is full."""
    start: float
    """Unix time where column 0 begins."""
    columns: int
    rows: dict[str, tuple[int | None, ...]]
    """Peer -> lag by column, None without a heartbeat; trailing columns may be missing."""


class PeerView(View):
    """A peer with its events."""

    peer: Row
    events: tuple[SentenceView, ...]


class EventsView(View):
    revision: int
    """Revision to pass as `since` in the next request."""
    events: tuple[SentenceView, ...]


class InviteView(View):
    """How to join the swarm that the dashboard shows."""

    role: str
    word: str
    command: str
    expires: float | None
    """None: never."""


class HealthView(View):
    status: Literal["ok", "quiet"]
    """`ok` while another peer's heartbeats arrive, and always in a replay."""
    quiet: float
    """Seconds since the last message of another peer; in a replay, since the last event."""


class RefusedView(View):
    """Why there is no answer, and what to do."""

    detail: str
