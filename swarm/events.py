"""Events: typed records of what happened, the only source of logs, journal, dashboard and test evidence.

The acting peer emits an event, and never reads it back; the Bus hands each event to its sinks in order
(swarm.journal, the gossip forwarder, a fold). Names are past participles; a figure in an event has its unit
in its docstring.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, get_args

import msgspec
from msgspec import Meta

from swarm.protocol import Role
from swarm.types import (
    COMPLETIONS,
    SETS,
    Beat,
    Digest,
    Estimate,
    Finite,
    Link,
    PeerId,
    Release,
    Struct,
    Sums,
    Text,
    Verdict,
    Word,
)

LAGS = 1024
"""Distinct lags of one count; a learner sends fewer at a time (peers.intake.inbox)."""

PEERS = 256
"""Peers named in one event: an id has 53 bytes, and an event 16 KiB."""

BUNDLED = 128
"""Events in one gossiped message of 4 KiB: one has at least 90 bytes, compressed somewhat less."""


Figures = Annotated[tuple[Finite, ...], Meta(max_length=COMPLETIONS)]


class Event(msgspec.Struct, frozen=True, kw_only=True, tag_field="event", tag=str.lower):
    """Base of all events."""

    at: Finite
    """Unix seconds by the clock of `peer`."""
    peer: PeerId


class Started(Event):
    """A peer began."""

    name: Word
    role: Role
    version: int
    hardware: Word


class Left(Event):
    """A peer ended in an orderly way."""

    name: Word
    reason: Text


class Heard(Event, omit_defaults=True):
    """A heartbeat, as its receiver saw it. `peer` is the receiver; `subject` sent it."""

    subject: PeerId
    beat: Beat
    invited: bool = True
    """The run's owner vouches for the sender; False for a stranger in a public run."""


class Lost(Event):
    """A peer has been silent for longer than the roster's patience, for `silent` seconds."""

    subject: PeerId
    silent: Finite


class Sampled(Event):
    """A sampler finished one group."""

    group: str
    task: int
    version: int
    seconds: Finite
    tokens: int
    reward: Finite
    """Mean over the group."""


class Judged(Event):
    """Admission's verdict over one group."""

    group: str
    sampler: PeerId
    verdict: Verdict
    detail: str
    versions: int
    """Lag at admission in versions."""
    seconds: Finite
    """Age at admission: now minus the release of its policy."""


class Counted(Event):
    """Verdicts since the last count, gossiped instead of one message per group."""

    verdicts: Sums
    """By Verdict value."""
    versions: Annotated[dict[Word, int], Meta(max_length=LAGS)]
    """Histogram of the trained groups' lag at training: versions -> groups."""
    seconds: Annotated[dict[Word, int], Meta(max_length=LAGS)]
    """Histogram of the trained groups' age in seconds, by power of two: upper bound -> groups."""
    samplers: Annotated[dict[PeerId, Sums], Meta(max_length=PEERS)]
    """Sampler -> verdict -> groups."""
    tokens: Sums = {}
    """Of groups that had their end, by what became of them (dashboard.fold.peer.ENDS)."""


class Shown(Event):
    """One trained group, for reading."""

    group: Word
    sampler: PeerId
    version: int
    prompt: Text
    answer: Text
    completions: Annotated[tuple[Text, ...], Meta(max_length=COMPLETIONS)]
    """The group's first completions, as many as keep the event small; rewards, advantages and weights are
    those of the same completions."""
    rewards: Figures
    advantages: Figures = ()
    weights: Figures = ()
    """Importance weights that the objective used, means over tokens; 0 outside its trust region; none where
    the group has no gradient."""


class Moved(Event):
    """A learner's round changed state."""

    version: int
    state: Word
    cause: Word


class Averaged(Event):
    """A round of averaging succeeded, as one of its members saw it."""

    version: int
    members: Annotated[tuple[PeerId, ...], Meta(max_length=PEERS)]
    seconds: Finite
    scaled: Annotated[dict[PeerId, Finite], Meta(max_length=PEERS)] = {}
    """Learner -> factor, for each gradient that was scaled down because its norm is far beyond the usual."""


NOT_FINITE = "the gradient is not finite"
"""Beginning of a RoundBroke event's reason where no other peer has a part in it."""


class RoundBroke(Event):
    """A round of averaging failed."""

    version: int
    reason: Text


class Unreached(Event):
    """A learner misses rounds although its heartbeats arrive, so many in a row: it is now tried only now and
    then."""

    version: int
    subject: PeerId
    rounds: int


class Trained(Event):
    """One optimizer step: the learner is at `version` now."""

    version: int
    groups: int
    members: int
    metrics: Annotated[dict[Word, Finite], Meta(max_length=256)]
    """reward, kl (nats per token), ess (0..1), weight_var, weight_max, grad_norm, entropy (nats), zero (share
    of samples with weight zero), flat (share of groups with equal rewards), cosine (between the gradients of
    two half batches), length (tokens), lag_versions, lag_seconds, ...

    Groups without a gradient do not go through the model: kl, ess, weights, entropy, zero and cosine are of
    the others, and missing where all groups have none."""
    gather: Finite
    learn: Finite
    average: Finite
    step: Finite
    """Seconds of the four phases."""


class Stepped(Event):
    """A learner begins a step with these groups; it counts where its version, or another member's step along
    the same average, is in the line of releases."""

    version: int
    """That the step makes."""
    parent: Digest
    members: tuple[PeerId, ...]
    groups: tuple[str, ...]
    """Ids of this learner's own groups."""
    others: tuple[str, ...] = ()
    """The other members', by the beginnings of their ids (`swarm.core.agreement.trained.mark`), in hex."""


class Audited(Event):
    """A learner or an auditor replayed a group; where `until` is above 0 it suspends the sampler."""

    group: Word
    sampler: PeerId
    finding: Word
    """A Finding of swarm.core.audits.auditing."""
    tokens: int
    off: int
    largest: Finite
    """Nats by which a token is off at most."""
    until: Finite = 0.0
    """Unix seconds."""
    strikes: int = 0
    why: Text = ""


class LeftOut(Event):
    """A learner computed the gradient of another one again, or could not, and leaves it out of its means."""

    learner: PeerId
    """The other one."""
    until: Finite
    """Unix seconds."""
    why: Text


class SetAside(Event):
    """This peer learned that a learner suspends a sampler, perhaps itself; evidence is kept of `group`."""

    by: PeerId
    sampler: PeerId
    until: Finite
    why: Text
    group: Word = ""


class Dropped(Event):
    """Groups that a learner had admitted are not trained by it after all."""

    groups: tuple[str, ...]
    why: str
    """`duplicate`, `expired`, `untrusted`, ..."""


class Found(Event):
    """Groups that a learner had admitted are on the disk that it starts with."""

    groups: tuple[str, ...]


class Returned(Event):
    """Groups that a learner had admitted wait for a batch again: their step was lost, or it restarted."""

    groups: tuple[str, ...]


class Released(Event):
    """A learner published a release."""

    release: Release


class Adopted(Event):
    """A sampler or an evaluator loaded a release."""

    version: int
    weights: Digest
    fetch: Finite
    load: Finite
    """Seconds."""
    age: Finite
    """Seconds from the release to here."""


class Snapped(Event):
    """A learner whose weights differed from the release took the release's."""

    version: int
    mine: Digest
    theirs: Digest


class CaughtUp(Event):
    """A learner that was behind, by `behind` versions, loaded a release."""

    version: int
    behind: int


class Forked(Event):
    """A learner took release `version`, which its own last one is not part of: `versions` of its line after
    version `since`, trained on `groups`, do not count any more; the oldest has the weights `first`."""

    version: int
    since: int
    versions: int
    groups: int
    first: Digest


Estimates = Annotated[dict[Word, Estimate], Meta(max_length=16)]
"""`mean@8`, `pass@2` ... -> 0 to 1."""


class SetResult(Struct, omit_defaults=True):
    """Of an evaluation set, as in Evaluated."""

    accuracy: Finite
    tasks: int
    sampled: Estimates = {}


class Evaluated(Event, omit_defaults=True):
    """An evaluator finished one evaluation; `accuracy` is greedy exact match on held-out tasks, 0 to 1."""

    version: int
    accuracy: Finite
    tasks: int
    sampled: Estimates = {}
    """Of completions that were sampled, where the run asks for them."""
    sets: Annotated[dict[Word, SetResult], Meta(max_length=SETS)] = {}
    """Evaluation set -> its result; those without any are left out."""


class Saved(Event):
    """A checkpoint is on the disk."""

    version: int
    seconds: Finite


class Transferred(Event):
    """Bytes that passed between this peer and others since its last Transferred, by purpose: `rollouts`,
    `weights`, `gradients`, `gossip`, `other`, and `carried` of a relay, from others to others."""

    seconds: Finite
    sent: Sums
    received: Sums
    links: Annotated[dict[PeerId, Link], Meta(max_length=PEERS)]
    """By peer id, those with the most bytes."""


class Faulted(Event):
    """A part of this peer broke and is being replaced."""

    part: Word
    """A Part of swarm.protocol."""
    detail: Text


class Recovered(Event):
    """A part that had Faulted works again."""

    part: Word
    seconds: Finite


REWARDS, LOGPROBS = "rewards", "log-probabilities"
"""Kinds of Rejected events: a sampler's claims about its completions differ from a learner's results; the
policy's own results are no numbers."""


class Rejected(Event):
    """A frame, record or block of another peer that did not pass its checks."""

    sender: PeerId
    kind: str
    reason: str


class Noted(Event):
    """A sentence for people."""

    level: str
    """`info`, `warning` or `error`."""
    text: str


Gossiped = (
    Started
    | Left
    | Counted
    | Shown
    | Moved
    | Averaged
    | RoundBroke
    | Unreached
    | Trained
    | Adopted
    | Snapped
    | CaughtUp
    | Forked
    | Evaluated
    | Transferred
    | Faulted
    | Recovered
    | Audited
    | LeftOut
)
"""Events that the dashboard needs from other peers, with every text and collection bounded; heartbeats and
releases have topics of their own."""

AnyEvent = (
    Gossiped
    | Heard
    | Lost
    | Sampled
    | Judged
    | Stepped
    | Dropped
    | Found
    | Returned
    | SetAside
    | Released
    | Saved
    | Rejected
    | Noted
)

GOSSIPED = get_args(Gossiped)
Bundle = Annotated[list[Gossiped], Meta(max_length=BUNDLED)]
"""One message of gossip."""


class Bus:
    """Hands each event to every sink, in the order in which they were added."""

    def __init__(self) -> None:
        self._sinks: list[Callable[[Event], None]] = []

    def add(self, sink: Callable[[Event], None]) -> None:
        self._sinks.append(sink)

    def emit(self, event: Event) -> None:
        for sink in self._sinks:
            sink(event)
