"""The types that peers exchange and modules share: frozen records, each defined once, here.

Everything here is plain data. What travels between peers (Group, Beat, Release) is a msgspec struct,
so that the wire format is the type: keyed, unknown fields ignored, missing fields refused. Times are unix
seconds, sizes are bytes. Every text and every collection says how much of it a decoder takes, so that no
frame costs more than its kind needs (tests walk the types).
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, NewType

import msgspec
from msgspec import Meta

from swarm.limits import BALLOTS, MAIL_LIMIT, RELEASE_LIMIT, WAY_BASES, WAY_STEPS
from swarm.protocol import Phase, Role

PeerId = NewType("PeerId", Annotated[str, Meta(max_length=128)])
"""libp2p id of an Ed25519 key in base58 (`12D3Koo...`, 52 characters): the identity is the key."""

Digest = NewType("Digest", Annotated[str, Meta(max_length=64)])
"""Hex of 32 bytes: BLAKE3 of weights and of blobs (swarm.storage.blocks), SHA-256 of files and of the
Spec."""

Root = Annotated[Digest, Meta(pattern="^[0-9a-f]{64}$")]
"""A digest by which blobs are asked for: on a disk it is the name of a file."""

Count = Annotated[int, Meta(ge=0)]

Size = Annotated[int, Meta(gt=0)]
"""Bytes."""

Word = Annotated[str, Meta(max_length=512)]
"""A name, an id, a state of one word or two, a file, an address."""

Text = Annotated[str, Meta(max_length=16 << 10)]
"""A text for people or for a model: at most what an event holds."""

COMPLETIONS = 4096
"""Completions of one group at most: the published methods take 4 to 64 of a task."""

SETS = 8
"""Evaluation sets of a run at most."""

MARK_BYTES, MARKED = 8, 1024
STEP_BYTES = 64 * MARK_BYTES * MARKED
"""Bytes of an id that tell groups apart, and most groups of one learner in one round. Ids are hashes of
completions: no learner can forge another one's mark. An announcement of a round stays below 16 KiB; a step of
64 learners has 512 KiB of marks."""

BLOB = MAIL_LIMIT.inflated
"""Bytes in one field: four times a mail, as far as numbers of a group may inflate."""

Finite = Annotated[float, Meta(ge=-1e308, le=1e308)]
"""A number in a message: neither NaN nor infinite, which JSON cannot represent and which poison every
mean."""


class Verdict(StrEnum):
    """Admission's decision about a group; each group gets exactly one."""

    ADMIT = "admit"
    STALE = "stale"
    DUPLICATE = "duplicate"
    OVER_QUOTA = "over-quota"
    MALFORMED = "malformed"
    UNTRUSTED = "untrusted"
    UNSCORED = "unscored"
    """Its rewards could not be recomputed at the learner."""
    UNVERIFIED = "unverified"
    """Its sampler is suspended: a replay of its groups contradicts their claims."""


class Noise(StrEnum):
    """How a group's tokens follow from its seed, so that others can replay them."""

    UNKNOWN = ""
    GUMBEL = "gumbel"
    """The argmax of log-probability plus the noise of swarm.draws.noise."""
    INVERSE = "inverse"
    """The inverse distribution function at the numbers of swarm.sample.toy."""


class Struct(msgspec.Struct, frozen=True, kw_only=True):
    """Base of all nouns."""


class Array(Struct):
    """Numbers as they travel: raw little-endian bytes with their type and shape."""

    dtype: Word
    """`int32` or `float32`."""
    shape: Annotated[tuple[int, ...], Meta(max_length=8)]
    data: Annotated[bytes, Meta(max_length=BLOB)]


class Message(Struct):
    """One turn of a conversation."""

    role: str
    """`system`, `user` or `assistant`."""
    content: str


class Task(Struct):
    """One task. Each peer regenerates it from (run seed, index); it is never taken from the wire."""

    environment: str
    index: int
    prompt: str
    answer: str
    messages: tuple[Message, ...] = ()
    """The conversation, where there is one; `prompt` is its last turn then, or the rendered template."""


class Estimate(Struct):
    """A measured value, and its interval of 95 % (swarm.core.intervals)."""

    value: Finite
    low: Finite
    high: Finite


class Times(Struct):
    """When a group passed each step, unix seconds by the clock of the peer that did it: splits a sampler's
    lag."""

    released: Finite
    """The policy's release, by its publisher."""
    fetched: Finite
    """The policy's bytes were complete at the sampler."""
    used: Finite
    """Sampling began."""
    finished: Finite
    """Sampling and scoring were done."""
    sent: Finite
    """The upload began (an injected upload delay lies before it)."""


class Heads(Struct):
    """A sampler's most probable tokens at each position of a group: `run.sampling.heads` tokens, or the whole
    vocabulary, the most probable first (swarm.draws.heads)."""

    tokens: Annotated[bytes, Meta(max_length=BLOB)]
    """(sum T_i, k) int32."""
    logprobs: Annotated[bytes, Meta(max_length=BLOB)]
    """(sum T_i, k) uint16: natural-log probabilities in steps of -1/1024."""


class Group(Struct, tag="group", omit_defaults=True):
    """G completions of one task by one sampler under one policy version. Atomic: never split, never mixed.

    Completions are ragged: `lengths` (G,) says how `tokens` and `logprobs` (sum T_i,) are cut.
    """

    id: Word
    """Hex blake2b-128 of its tokens: two deliveries of a group have one id."""
    sampler: PeerId
    task: int
    """Task index; the learner regenerates the task."""
    version: int
    weights: Digest
    """Digest of the weights that sampled it."""
    draw: Count
    """How many groups the sampler drew of this release before: task and seed follow from it."""
    seed: int
    lengths: Annotated[tuple[int, ...], Meta(max_length=COMPLETIONS)]
    tokens: Array
    """(sum T_i,) int32 completion tokens, the end token included."""
    logprobs: Array
    """(sum T_i,) float32 natural-log probabilities under the sampler's policy at the run's temperature."""
    rewards: Annotated[tuple[Finite, ...], Meta(max_length=COMPLETIONS)]
    """(G,) claimed by the sampler; learners recompute them."""
    times: Times
    noise: Word = ""
    """A Noise; another value: it cannot be replayed here."""
    heads: Heads | None = None  # None where the run asks for none
    scored: bool = True  # False: its sampler could not score it, and `rewards` claim nothing


class Receipt(Struct, tag="receipt"):
    """Acknowledgement of a group."""

    verdict: Verdict
    detail: Text
    version: int
    """The learner's version."""
    credit: int
    """Groups that the learner can still use."""
    kept: bool = False
    """Whether an admitted group is on the learner's disk: a learner that dies takes it up again."""
    until: Finite = 0.0
    """Unix seconds until which its sampler is suspended, for the reason in `detail`; 0: it is not."""
    unkept: bool = False
    """Whether the learner's disk refused an admitted group: its sampler delivers it again where the learner
    dies before long."""


class Patch(Struct):
    """How a release's bytes are made of another version's: a patch file's address
    (swarm.storage.patch_files)."""

    base: Root
    """Weights of the version that it starts from."""
    root: Root
    """Of the file's blocks."""
    size: Size
    """Bytes of the file."""


class Vote(Struct, frozen=True):
    """A learner's signed vote for the release of a version."""

    version: Count
    parent: Digest
    """`weights` of the version before."""
    choice: Annotated[str, Meta(max_length=64)]
    """The weights that its voter has, or the id of the learner that may step alone."""
    yields: bool
    """It is that id."""
    signature: Annotated[bytes, Meta(max_length=64)]


class Ballot(Struct, frozen=True):
    """A vote for a release, as that release carries it."""

    voter: PeerId
    yields: bool
    """It is for the release's publisher; otherwise for its weights."""
    signature: Annotated[bytes, Meta(max_length=64)]


class Release(Struct, tag="release"):
    """A published policy version: the only way in which weights reach others. Its publisher signs it."""

    version: Count
    weights: Root
    """Root of the blocks of the safetensors bytes (bf16): the address of their leaf list
    (swarm.storage.blocks)."""
    size: Size
    parent: Digest
    """`weights` of the version before."""
    publisher: PeerId
    learners: Count
    """How many learners averaged for it; 0 where its publisher does not know."""
    groups: Count
    """How many groups were trained on for it: of two releases of one version the larger wins."""
    released: Finite
    """Unix seconds by its publisher's clock, for people: ages count from a release's arrival."""
    patches: Annotated[tuple[Patch, ...], Meta(max_length=2)] = ()
    """From the version before, and at a rung of the ladder (swarm.core.agreement.patch_path) from the one
    below, or from version 0."""
    ballots: Annotated[tuple[Ballot, ...], Meta(max_length=BALLOTS)] = ()
    """Votes for it, by which peers that were not there know that most learners agreed."""


class TrainedStep(Struct):
    """Which groups a learner's step, or the round that it was made of, was trained on."""

    version: Count
    """That the step made."""
    parent: Digest
    """Of the version before."""
    members: Annotated[tuple[PeerId, ...], Meta(max_length=256)]
    """Of the round; one for a step alone, none where they are unknown."""
    groups: Annotated[bytes, Meta(max_length=STEP_BYTES)]
    """Marks of the groups of all members (`swarm.core.agreement.trained.mark`)."""
    weights: Digest = Digest("")
    """Of the version that it made; empty where unknown."""


class TrainedQuery(Struct, tag="trained-query"):
    """Asks a learner for its last steps and its policy's."""

    since: Count  # the first version whose step is asked for


class TrainedSteps(Struct, tag="trained"):
    """The last steps of a learner and of the policy that it has."""

    steps: Annotated[tuple[TrainedStep, ...], Meta(max_length=4096)]


class ReleaseQuery(Struct, tag="sought"):
    """Asks a sampler for the release that its group names."""

    version: int
    weights: Digest
    released: Finite


class WayQuery(Struct, tag="way-query"):
    """Asks a holder for the releases that lead by patches to the release with the weights `to`."""

    to: Digest
    held: Annotated[tuple[Digest, ...], Meta(max_length=WAY_BASES)]
    """Weights that the asker holds."""


class Way(Struct, tag="way"):
    """Releases as their publishers signed them, each a patch on the one before; none if none is known."""

    releases: Annotated[
        tuple[Annotated[bytes, Meta(max_length=RELEASE_LIMIT.sealed)], ...], Meta(max_length=WAY_STEPS)
    ]


class Lag(Struct):
    """A sampler's lag split into its causes: means over its last groups, seconds; `versions` is the lag at
    its last verdict."""

    versions: Finite = 0.0
    download: Finite = 0.0
    queue: Finite = 0.0
    generation: Finite = 0.0
    upload: Finite = 0.0
    inbox: Finite = 0.0


Sums = Annotated[dict[Word, int], Meta(max_length=16)]
"""Purpose or verdict -> count; there are fewer than ten of each."""


class Link(Struct):
    """One peer's receipts from another peer, and the speed of its answers."""

    received: Sums = {}
    """Bytes by purpose: `rollouts`, `weights`, `gradients`, `other`."""
    rtt: Finite = 0.0
    """Seconds of its fastest answer of the last minute to a small message; 0: there was none."""
    relayed: bool = False


class Moments(Struct):
    """Count, mean and squared deviations of a set of numbers; the moments of several sets can be merged."""

    count: int
    mean: Finite
    square: Finite
    """Sum of the squared distances from the mean."""


class BatchRewards(Struct):
    """Statistics of the rewards of a batch that a learner closed, where objectives need a round's."""

    live: int
    """Completions whose group's rewards differ."""
    completions: Moments
    """Moments of their rewards."""
    groups: Moments
    """Moments of the groups' mean rewards."""


class Fetching(Struct):
    """A peer's download, and how many bytes are here: all of a release, or patches that lead to one."""

    version: Count
    held: Count
    size: Size


class StageProgress(Struct):
    """How far a peer is in a stage of its work that takes long."""

    stage: Word
    """A WorkStage of swarm.protocol, or one of a later program."""
    done: Count
    total: Count
    left: Finite = -1.0
    """Seconds to its end at its pace; -1: unknown."""
    reward: Finite | None = None
    """Mean of the groups that have come, of a batch and its gradient."""


class Beat(Struct, tag="beat", omit_defaults=True):
    """A heartbeat: which peer is alive, its activity, its version. At most 1.5 KiB sealed."""

    name: Word
    role: Role
    incarnation: int
    """Milliseconds of the start: a restarted peer outranks its own old heartbeats."""
    seq: int
    version: int
    weights: Digest
    state: Word
    """A word or two for people: `sampling`, `waiting for credit`. No code compares it."""
    credit: int
    """Groups that a learner can still use."""
    takers: int
    """Samplers that share the credit."""
    inbox: int
    """Groups waiting at a learner, or on the way from a sampler."""
    done: int
    """Groups trained, sampled or replayed, or versions evaluated, since the start: by its role."""
    refused: int
    rate: Finite
    """`done` per second, over the last half minute."""
    tokens: Finite
    """Tokens per second, over the last half minute."""
    busy: Finite
    """Share of the last half minute spent computing, 0 to 1."""
    lag: Lag
    addresses: Annotated[tuple[Word, ...], Meta(max_length=4)]
    hardware: Word
    at: Finite
    closed: BatchRewards | None = None
    """Of a learner that closed its batch for `version`, where the objective needs all rewards of a round."""
    phase: Phase = Phase.UNKNOWN
    """The peer's activity, for other programs."""
    early: bool = False
    """Of a learner that can learn on its own version before its release: the last one was as released."""
    mirror: Annotated[int, Meta(ge=-1)] = -1
    """The newest version whose bytes a mirror holds; -1: the peer is none. Mirrors are asked first."""
    upload: Finite = 0.0
    download: Finite = 0.0
    """Mbit/s that the peer lets releases and rounds send and take (`peer.limits`); 0: all of its line."""
    fetching: Fetching | None = None
    """None: no release."""
    accuracy: Finite = -1.0
    """Of an evaluator: the held-out accuracy of `version`, 0 to 1, where an answer that cannot be scored is
    wrong; -1: it has none."""
    revoked: Count = 0
    """Number of the newest list of revocations that the peer has."""
    speed: Finite = 0.0
    """Groups per second that a learner's gradients of full batches take in; 0: it has computed none."""
    hears: Count = 0
    """Of a seed: number of peers whose heartbeats it receives. In a large swarm samplers beat more seldom."""
    slower: Finite = 1.0
    """How many times as long as the run's pace the peer waits until its next heartbeat: 1 to SLOWEST."""
    wasted: Sums = {}
    """Of a sampler: tokens since its start that no learner judged, by cause
    (dashboard.fold.peer.UNJUDGED)."""
    vote: Vote | None = None
    """Of a learner: its last one (peers.runtime.releases.agreement)."""
    accuracy_before: Finite = -1.0
    """Of an evaluator: the accuracy of the evaluation before that of `accuracy`; -1: there was none. Peers of
    version 0.1 end a run by both."""
    unkept: bool = False
    """Of a learner whose disk refuses its groups: learners with a working disk are preferred."""
    judged: Count = 0
    """Of an evaluator: tasks of which `accuracy` is the share that was right; 0: not told."""
    progress: StageProgress | None = None
    """None: nothing takes long, or the peer does not say."""
