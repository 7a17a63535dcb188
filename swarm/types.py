"""The nouns: one frozen type each, in one place.

Everything here is plain data. What travels between peers (Group, Beat, Release, Record) is a msgspec struct, so that the wire
format is the type: keyed, unknown fields ignored, missing fields refused. Times are unix seconds, sizes are bytes.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, NewType

import msgspec

PeerId = NewType("PeerId", str)
"""libp2p id of an Ed25519 key in base58 (`12D3Koo...`): the identity is the key."""

Digest = NewType("Digest", str)
"""Lower-case hex sha256."""

Finite = Annotated[float, msgspec.Meta(ge=-1e308, le=1e308)]
"""A number that travels: neither NaN nor infinite, which JSON cannot say and which poison every mean they enter."""


class Role(StrEnum):
    SEED = "seed"
    SAMPLER = "sampler"
    LEARNER = "learner"
    EVALUATOR = "evaluator"
    OBSERVER = "observer"


class Verdict(StrEnum):
    """What admission says of a group; each group gets exactly one."""

    ADMIT = "admit"
    STALE = "stale"
    DUPLICATE = "duplicate"
    OVER_QUOTA = "over-quota"
    MALFORMED = "malformed"
    UNTRUSTED = "untrusted"
    UNSCORED = "unscored"
    """Its rewards could not be recomputed at the learner."""


class Struct(msgspec.Struct, frozen=True, kw_only=True):
    """Base of all nouns."""


class Array(Struct):
    """Numbers as they travel: raw little-endian bytes with their type and shape."""

    dtype: str
    """`int32`, `float32` or `bfloat16`."""
    shape: tuple[int, ...]
    data: bytes


class Message(Struct):
    """One turn of a conversation."""

    role: str
    """`system`, `user` or `assistant`."""
    content: str


class Task(Struct):
    """One exercise, regenerated from (run seed, index) by whoever needs it; never trusted from the wire."""

    environment: str
    index: int
    prompt: str
    answer: str
    messages: tuple[Message, ...] = ()
    """Of conversational data; `prompt` is then its last turn, or what the chat template made of them."""


class Times(Struct):
    """When a group passed each station, by the clock of the peer that was there. Splits a sampler's lag into its causes."""

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


class Group(Struct, tag="group"):
    """G completions of one task by one sampler under one policy version. Atomic: never split, never mixed.

    Completions are ragged: `lengths` (G,) says how `tokens` and `logprobs` (sum T_i,) are cut.
    """

    id: str
    """Hex blake2b-128 of what was sampled: two deliveries of a group have one id."""
    sampler: PeerId
    task: int
    """Task index; the learner regenerates the task."""
    version: int
    weights: Digest
    """Digest of the weights that sampled it."""
    lease: str
    """Who asked for this task and seed; empty while samplers draw their own."""
    seed: int
    lengths: tuple[int, ...]
    tokens: Array
    """(sum T_i,) int32 completion tokens, the end token included."""
    logprobs: Array
    """(sum T_i,) float32 natural-log probabilities under the sampler's policy at the run's temperature."""
    rewards: tuple[Finite, ...]
    """(G,) claimed by the sampler; learners recompute them."""
    times: Times


class Receipt(Struct, tag="receipt"):
    """Acknowledgement of a group."""

    verdict: Verdict
    detail: str
    version: int
    """The learner's version."""
    credit: int
    """Groups that the learner can still use."""


class Release(Struct, tag="release"):
    """A policy version that exists: the only way weights reach anybody. Signed by its publisher's envelope."""

    version: int
    weights: Digest
    """sha256 of the safetensors bytes (bf16)."""
    manifest: Digest
    """Content address of the Manifest."""
    size: int
    parent: Digest
    """`weights` of the version before."""
    publisher: PeerId
    learners: int
    """How many learners averaged for it."""
    groups: int
    """How many groups were trained on for it: of two releases of one version the larger wins."""
    released: Finite


class Manifest(Struct, tag="manifest"):
    """What a release's bytes are cut into; itself a content-addressed blob."""

    version: int
    weights: Digest
    size: int
    chunks: tuple[Digest, ...]


class Lag(Struct):
    """Means over a peer's last groups, seconds; `versions` is what admission saw last."""

    versions: Finite = 0.0
    download: Finite = 0.0
    queue: Finite = 0.0
    generation: Finite = 0.0
    upload: Finite = 0.0
    inbox: Finite = 0.0


class Link(Struct):
    """What a peer received from one other peer, and how fast that one answers."""

    received: dict[str, int] = {}
    """Bytes by purpose: `rollouts`, `weights`, `gradients`, `other`."""
    rtt: Finite = 0.0
    """Its fastest answer of the last minute to a small message, in seconds; 0: there was none."""
    relayed: bool = False


class Beat(Struct, tag="beat"):
    """A heartbeat: who is alive, doing what, at which version. At most 1 KiB sealed."""

    name: str
    role: Role
    incarnation: int
    """Milliseconds of the start: a restarted peer outranks its own old heartbeats."""
    seq: int
    version: int
    weights: Digest
    state: str
    """One word or two for the page: `sampling`, `waiting for credit`, a round's state in lower case."""
    credit: int
    """Groups that a learner can still use."""
    takers: int
    """Samplers that share the credit."""
    inbox: int
    """Groups waiting at a learner, or on the way from a sampler."""
    done: int
    """Groups trained (learner), sampled (sampler), evaluated versions (evaluator) since the start."""
    refused: int
    rate: Finite
    """`done` per second, over the last half minute."""
    tokens: Finite
    """Tokens per second, over the last half minute."""
    busy: Finite
    """Share of the last half minute spent computing, 0 to 1."""
    lag: Lag
    addresses: tuple[str, ...]
    hardware: str
    at: Finite


class Record(Struct):
    """What a Board holds under a key: one value per peer."""

    peer: PeerId
    value: bytes
    expires: Finite


class Spec(Struct, tag="spec"):
    """What all peers of a run must agree on. Its digest is in the invite, in every release and in every frame."""

    protocol: int
    run: dict[str, object]
    """The `[run]` half of the config, complete with defaults."""
    owner: str
    """Hex Ed25519 public key that signs memberships."""
    files: dict[str, Digest]
    """Model folder: config.json, tokenizer files, and the base's weights where a run trains an adapter on a local model."""
    genesis: Digest
    """sha256 of the bf16 safetensors of version 0: all weights, or the first adapter."""
    task: dict[str, Digest] = {}
    """Local data and reward code of the task."""
    sizes: dict[str, int] = {}
    """Bytes of each of `files`, and of each of `task` under `task/<name>`: a joiner knows what it asks for."""


class Delegation(Struct):
    """The owner lets the holder of `key` admit peers to a role until `expires`."""

    role: Role
    expires: int
    key: bytes
    signature: bytes
    """By the owner, over (run name, role, expires, key)."""


class Membership(Struct):
    """A peer's proof that it may act in a role: owner -> delegation -> peer, checkable offline."""

    peer: PeerId
    delegation: Delegation
    signature: bytes
    """By the delegation's key, over the peer id."""
