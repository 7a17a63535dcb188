"""The protocol between peers, as tables: services, topics, board keys, roles, phases, kinds of work, parts.

    Service  a request and its answer, by mail       Role  the function of a peer in a run
    Topic    messages to all subscribers, by gossip  Kind  a kind of slow work, and its thread
    Key      records that expire, on the board       Part  a part of a peer that can fail (Faulted events)
    Phase    the activity of a peer, in its heartbeat
    WorkStage  a stage of the work that may take long; how far a peer is in it is in its heartbeat

All other code takes these names from here. Values of the enums are sent to peers or written to journals: they
never change. Not handled: fields of the messages (swarm.types), permissions (swarm.core.membership).
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import NamedTuple

from swarm.limits import BEAT_LIMIT, EVENT_LIMIT, FRAME_LIMIT, RECORD_LIMIT, RELEASE_LIMIT, REQUEST, Limit

SCHEMA = 1
"""Version of the envelope around every frame; swarm.PROTOCOL is the version of all the rest."""


class Service(StrEnum):
    """Services that peers offer by mail."""

    GROUPS = "groups"
    BLOBS = "blobs"
    PATCHES = "patches"
    STATES = "states"
    CONTRIBUTIONS = "contributions"
    HELD = "held"
    SPEC = "spec"
    NEWEST = "newest"
    RELEASE = "release"
    WAY = "way"
    LINE = "line"
    BEATS = "beats"
    STATE = "state"
    TRAINED = "trained"
    UNKEPT = "unkept"
    BATCHES = "batches"
    ACCUSED = "accused"
    SUBMITTED = "submitted"
    HISTORY = "history"
    RENEW = "renew"
    ENTER = "enter"
    DIALBACK = "dialback"
    RELAY = "relay"


class ServiceRow(NamedTuple):
    calls: int
    """Handlers that run at once."""
    largest: int
    """Bytes of one message; an answer has FRAME_LIMIT."""
    answers: str
    """The peers that serve it."""
    question: str
    answer: str
    asked: str = "other"
    answered: str = "other"
    """What a question's and an answer's bytes are counted as (`swarm.events.Transferred`)."""


SERVICES: Mapping[str, ServiceRow] = {
    # rewards may take seconds each, and a learner has room for as many by default
    Service.GROUPS: ServiceRow(128, FRAME_LIMIT, "learners", "a Group's frame", "Receipt", asked="rollouts"),
    Service.BLOBS: ServiceRow(
        64, REQUEST, "all peers", "BlockQuery: some blocks", "Holding", answered="weights"
    ),
    # Stores of their own: they are held for different numbers of versions, and their bytes are counted apart.
    Service.PATCHES: ServiceRow(64, REQUEST, "all peers", "as blobs", "as blobs", answered="weights"),
    Service.STATES: ServiceRow(64, REQUEST, "learners", "as blobs", "as blobs", answered="gradients"),
    Service.CONTRIBUTIONS: ServiceRow(64, REQUEST, "learners", "as blobs", "as blobs", answered="gradients"),
    Service.HELD: ServiceRow(128, REQUEST, "as the store", "`held/blobs`, ...: BlockQuery", "Holding"),
    Service.SPEC: ServiceRow(16, REQUEST, "all peers", "FileRequest", "part of the Spec or of a file"),
    Service.NEWEST: ServiceRow(16, REQUEST, "all peers", "nothing", "frame of the newest Release here"),
    Service.RELEASE: ServiceRow(16, REQUEST, "all peers", "ReleaseQuery", "frame of the Release, or nothing"),
    Service.WAY: ServiceRow(16, REQUEST, "all peers", "WayQuery", "Way: releases between two versions"),
    Service.LINE: ServiceRow(16, REQUEST, "all peers", "PointQuery", "Line: a release and its ancestors"),
    Service.BEATS: ServiceRow(16, REQUEST, "all peers", "BeatQuery", "frame of a peer's Beat, or nothing"),
    Service.STATE: ServiceRow(16, REQUEST, "learners", "nothing", "Offer"),
    Service.TRAINED: ServiceRow(16, REQUEST, "learners, seeds", "TrainedQuery", "TrainedSteps: their groups"),
    Service.UNKEPT: ServiceRow(16, FRAME_LIMIT, "seeds", "TrainedSteps that a full disk refused", "nothing"),
    Service.BATCHES: ServiceRow(32, REQUEST, "learners", "BatchQuery", "BatchManifest, or a Group"),
    Service.ACCUSED: ServiceRow(16, REQUEST, "accusers", "AccusedQuery", "the accused Group"),
    Service.SUBMITTED: ServiceRow(
        16, REQUEST, "learners", "SubmittedQuery", "Submitted, or one of its Groups"
    ),
    Service.HISTORY: ServiceRow(
        16, REQUEST, "seeds and observers", "nothing", "Past: a dashboard's snapshot"
    ),
    Service.RENEW: ServiceRow(16, REQUEST, "the owner, members with an invite", "Membership", "Membership"),
    Service.ENTER: ServiceRow(16, REQUEST, "all peers", "Membership, or nothing", "Entry"),
    Service.DIALBACK: ServiceRow(
        16, REQUEST, "all peers", "DialQuery", "DialAnswer: whether the dial succeeded"
    ),
    Service.RELAY: ServiceRow(
        16, REQUEST, "reachable members", "nothing", "Reserved: an address over this peer"
    ),
}


class Topic(StrEnum):
    """Topics of gossip."""

    BEAT = "beat"
    RELEASE = "release"
    BEAT_SAMPLER = "beat/sampler"
    EVENT = "event"
    CONTRIBUTION = "contribution"
    COUNTED = "counted"
    ACCUSED = "accused"


class TopicRow(NamedTuple):
    noun: str
    limit: Limit
    all: bool
    """Whether all peers subscribe; observers also subscribe to the others."""
    why: str


TOPICS: Mapping[Topic, TopicRow] = {
    Topic.BEAT: TopicRow("Beat", BEAT_LIMIT, True, "heartbeats of all roles but samplers"),
    Topic.RELEASE: TopicRow("Release", RELEASE_LIMIT, True, "a new version"),
    Topic.BEAT_SAMPLER: TopicRow(
        "Beat", BEAT_LIMIT, False, "heartbeats of samplers; also to peers that fetch"
    ),
    Topic.EVENT: TopicRow("Bundle", EVENT_LIMIT, False, "events for dashboards"),
    Topic.CONTRIBUTION: TopicRow("Contribution", RELEASE_LIMIT, False, "to learners: a new contribution"),
    Topic.COUNTED: TopicRow("ContributionList", RELEASE_LIMIT, False, "to learners: the list that counts"),
    Topic.ACCUSED: TopicRow("Accusation", RELEASE_LIMIT, True, "a sampler's forged group"),
}


class Key(StrEnum):
    """Keys of the board: one record of each peer under each key."""

    MEMBER = "member"
    NEWEST = "newest"


class KeyRow(NamedTuple):
    noun: str
    limit: int
    """Bytes of one peer's record."""
    why: str


KEYS: Mapping[Key, KeyRow] = {
    Key.MEMBER: KeyRow("Beat", RECORD_LIMIT, "serving peers, for newcomers without gossip"),
    Key.NEWEST: KeyRow("Release", RECORD_LIMIT, "the newest release at the peer, where it fits"),
}


class Role(StrEnum):
    """In the order of their numbers in an invite, from 1 on: a new one goes to the end."""

    SEED = "seed"
    SAMPLER = "sampler"
    LEARNER = "learner"
    EVALUATOR = "evaluator"
    OBSERVER = "observer"
    AUDITOR = "auditor"


class PolicyUse(StrEnum):
    """A role's use of the policy, which decides the arguments of its program."""

    TRAINED = "trained"
    """program(host, learner, source, tokenization, checkpoints' folder or None, Replay's maker or None)"""
    SAMPLED = "sampled"
    """program(host, engine, source, folder of the outbox or None)"""
    USED = "used"
    """program(host, engine, source, evaluation sets by name)"""
    REPLAYED = "replayed"
    """program(host, source, tokens of the vocabulary, Replay's maker)"""
    KEPT = "kept"
    """program(host, weights of version 0 or None)"""
    UNUSED = "unused"
    """program(host, folder)"""


class RoleRow(NamedTuple):
    program: str
    """`module:class` whose `run` is the role. A name, since the library does not import the programs."""
    policy: PolicyUse
    member: bool = False
    """Whether it needs a membership in a public run too: others act on its messages."""
    joins: bool = False
    """Whether `swarm join` starts one; the other roles have commands of their own."""
    observes: bool = False
    """Whether it receives all events and heartbeats, and journals them."""
    heartbeat: Topic = Topic.BEAT
    posts: bool = False
    """Whether it posts its heartbeat and its newest release on the board, since others depend on it."""
    asked: int = 3
    """Rank in the order in which holders of a release are asked for its bytes."""


ROLES: Mapping[Role, RoleRow] = {
    Role.LEARNER: RoleRow(
        "peers.learner.learner:LearnerPeer", PolicyUse.TRAINED, member=True, joins=True, posts=True, asked=0
    ),
    Role.SAMPLER: RoleRow(
        "peers.sampler.sampler:Sampler", PolicyUse.SAMPLED, joins=True, heartbeat=Topic.BEAT_SAMPLER
    ),
    Role.EVALUATOR: RoleRow(
        "peers.evaluator:Evaluator", PolicyUse.USED, member=True, joins=True, posts=True, asked=2
    ),
    Role.AUDITOR: RoleRow(
        "peers.audits.auditor_peer:AuditorPeer", PolicyUse.REPLAYED, member=True, joins=True
    ),
    Role.SEED: RoleRow("peers.seed:Seed", PolicyUse.KEPT, member=True, observes=True, posts=True, asked=1),
    Role.OBSERVER: RoleRow("peers.observer:Observer", PolicyUse.UNUSED, observes=True),
}
"""In the order of the dashboard."""

JOINING = tuple(role for role in Role if ROLES[role].joins)
"""Roles that `swarm join` starts."""


class Phase(StrEnum):
    """A peer's activity, in its heartbeat. Other peers act on it; the text there is for readers."""

    UNKNOWN = ""
    """A heartbeat without a phase, or with an unknown one."""
    STARTING = "starting"
    LEAVING = "leaving"
    SAMPLING = "sampling"
    NO_POLICY = "no policy"
    NO_CREDIT = "no credit"
    NO_TASKS = "no tasks"
    NO_ENGINE = "no engine"
    GATHERING = "gathering"
    LEARNING = "learning"
    MATCHING = "matching"
    STEPPING = "stepping"
    RELEASING = "releasing"
    EARLY = "early"
    """A learner has closed a batch for a version of its own that is not released yet."""
    CATCHING_UP = "catching up"
    SYNCING = "syncing"
    STOPPED = "stopped"
    EVALUATING = "evaluating"
    AUDITING = "auditing"
    NO_RELEASE = "no release"
    SERVING = "serving"
    WATCHING = "watching"
    PAUSED = "paused"
    LIMITED = "limited"
    COMPLETE = "complete"

    @classmethod
    def _missing_(cls, value: object) -> Phase:
        return cls.UNKNOWN


PHASES: Mapping[Phase, str] = {
    Phase.UNKNOWN: "",
    Phase.STARTING: "starting",
    Phase.LEAVING: "leaving",
    Phase.SAMPLING: "sampling",
    Phase.NO_POLICY: "waiting for a policy",
    Phase.NO_CREDIT: "waiting for credit",
    Phase.NO_TASKS: "waiting for tasks",
    Phase.NO_ENGINE: "waiting for the engine",
    Phase.GATHERING: "gathering",
    Phase.LEARNING: "learning",
    Phase.MATCHING: "matching",
    Phase.STEPPING: "stepping",
    Phase.RELEASING: "releasing",
    Phase.EARLY: "learning, releasing",
    Phase.CATCHING_UP: "catching up",
    Phase.SYNCING: "syncing",
    Phase.STOPPED: "stopped",
    Phase.EVALUATING: "evaluating",
    Phase.AUDITING: "auditing",
    Phase.NO_RELEASE: "waiting for a release",
    Phase.SERVING: "serving",
    Phase.WATCHING: "watching",
    Phase.PAUSED: "paused",
    Phase.LIMITED: "limited",
    Phase.COMPLETE: "complete",
}
"""Names on the dashboard and in the terminal."""

ROUND = (
    Phase.GATHERING,
    Phase.LEARNING,
    Phase.MATCHING,
    Phase.STEPPING,
    Phase.RELEASING,
    Phase.CATCHING_UP,
    Phase.STOPPED,
)
"""Phases of a learner: the states of its round (swarm.core.agreement.rounds), under the same names."""

RESTING = (Phase.PAUSED, Phase.LIMITED)
"""Phases of a peer that rests by its owner's will: paused, or outside a limit such as its hours."""


class WorkStage(StrEnum):
    """Stages of the work that may take long: how far a peer is in one is in its heartbeat."""

    BATCH = "batch"
    GRADIENT = "gradient"
    SAMPLING = "sampling"
    EVALUATION = "evaluation"
    RELEASE = "release"
    """A download: heartbeats have it as `fetching`."""


STAGES: Mapping[str, str] = {
    WorkStage.BATCH: "groups",
    WorkStage.GRADIENT: "groups",
    WorkStage.SAMPLING: "completions",
    WorkStage.EVALUATION: "tasks",
    WorkStage.RELEASE: "bytes",
}
"""What is counted of each, in the order of a version."""


class Thread(StrEnum):
    """Threads of the Work port: each runs one call at a time, in order."""

    MODEL = "work"
    DRAW = "draw"
    """Tasks may come from other programs and are made while the model samples others."""
    SCORE = "score"
    """Rewards wait for other programs and are computed while the model computes."""
    CUT = "cut"
    """Bytes for other peers are hashed and cut into blocks while the model computes."""
    RELEASE = "release"
    """Versions become releases, and back, while the model computes; none waits for a state to be cut."""
    INTAKE = "intake"
    """Large groups are opened while rewards wait for other programs."""
    SAVE = "save"
    LOG = "log"
    """Groups are acknowledged once the disk has them, whatever the other threads do."""


class Kind(StrEnum):
    """Kinds of work on the Work port; a simulation's scenario prices it by this name."""

    SAMPLE = "sample"
    EVALUATE = "evaluate"
    LEARN = "learn"
    STEP = "step"
    AUDIT = "audit"
    LOAD = "load"
    COPY = "copy"
    PACK = "pack"
    SAVE = "save"
    KEEP = "keep"
    HISTORY = "history"
    DRAW = "draw"
    OPEN = "open"
    SCORE = "score"
    CUT = "cut"
    PATCH = "patch"


class KindRow(NamedTuple):
    thread: Thread
    why: str


KINDS: Mapping[Kind, KindRow] = {
    Kind.SAMPLE: KindRow(Thread.MODEL, "completions of a group"),
    Kind.EVALUATE: KindRow(Thread.MODEL, "greedy answers to held-out tasks"),
    Kind.LEARN: KindRow(Thread.MODEL, "the gradient of a batch"),
    Kind.STEP: KindRow(Thread.MODEL, "an optimizer step"),
    Kind.AUDIT: KindRow(Thread.MODEL, "the replay of a group"),
    Kind.LOAD: KindRow(Thread.MODEL, "weights into a model, or a model from disk"),
    Kind.COPY: KindRow(Thread.MODEL, "a model's weights or a learner's state, copied for release or sync"),
    Kind.PACK: KindRow(Thread.RELEASE, "copied weights into bytes and a digest"),
    Kind.SAVE: KindRow(Thread.SAVE, "a checkpoint or another durable file"),
    Kind.KEEP: KindRow(Thread.LOG, "groups and trained steps to disk"),
    Kind.HISTORY: KindRow(Thread.MODEL, "a dashboard's history from another observer's snapshot"),
    Kind.DRAW: KindRow(Thread.DRAW, "tasks from a source"),
    Kind.OPEN: KindRow(Thread.INTAKE, "large groups, decoded from their frames"),
    Kind.SCORE: KindRow(Thread.SCORE, "rewards of completions"),
    Kind.CUT: KindRow(Thread.CUT, "a learner's state into blocks"),
    Kind.PATCH: KindRow(Thread.RELEASE, "a patch, made or applied"),
}


class Part(StrEnum):
    """Parts of a peer, named by Faulted events."""

    P2PD = "p2pd"
    DHT = "dht"
    NETWORK = "network"
    GOSSIP = "gossip"
    MAIL = "mail"
    AVERAGER = "averager"
    ENGINE = "engine"
    LEARNER = "learner"
    MEMORY = "memory"
    REWARDS = "rewards"
    DISK = "disk"
    MEMBERSHIP = "membership"
    IDENTITY = "identity"
    TRACKER = "tracker"


class PartRow(NamedTuple):
    why: str
    text: str = "failed and is being restarted"
    """What follows the part's name on the dashboard."""
    momentary: bool = False
    """Whether its faults may be single failures, which no Recovered event follows."""


PARTS: Mapping[str, PartRow] = {
    Part.P2PD: PartRow("libp2p's daemon died or hangs"),
    Part.DHT: PartRow("the board's process died or hangs"),
    Part.NETWORK: PartRow("no other peer is connected", "reaches no other peer"),
    Part.GOSSIP: PartRow(
        "connected peers do not receive published messages", "does not reach connected peers"
    ),
    Part.MAIL: PartRow("a handler failed: a bug of this program", momentary=True),
    Part.AVERAGER: PartRow("the averager's process died or missed its deadline"),
    Part.ENGINE: PartRow("the sampling engine failed"),
    Part.LEARNER: PartRow("a gradient, step or checkpoint failed"),
    Part.MEMORY: PartRow("a batch does not fit", "is too small for a batch"),
    Part.REWARDS: PartRow("a reward function failed", "cannot be computed"),
    Part.DISK: PartRow("a file could not be written or is damaged", "refused or lost data", momentary=True),
    Part.MEMBERSHIP: PartRow("it ends soon and no peer renews it", "is not renewed", momentary=True),
    Part.IDENTITY: PartRow(
        "another process has the same key", "is in use by another process", momentary=True
    ),
    Part.TRACKER: PartRow("the experiment tracker takes no figures", "takes no figures"),
}
