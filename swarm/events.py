"""What happened: the only source of logs, journal, live view, page and test evidence.

An Event is a frozen tagged struct with the time and the peer it happened at. Whoever acts emits; the Bus
hands each event to its sinks in order (a journal file, the gossip forwarder, a fold). Events are facts: they
are never read back by the code that emitted them. Names are past participles; a figure in an event has its
unit in its docstring.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Annotated, get_args

import msgspec
from msgspec import Meta

from swarm.protocol import Role
from swarm.types import (
    COMPLETIONS,
    Beat,
    Digest,
    Finite,
    Lag,
    Link,
    PeerId,
    Release,
    Sums,
    Text,
    Verdict,
    Word,
)

LAGS = 1024
"""Distinct lags of one count; a learner sends fewer at a time (peers.roles.learner_inbox)."""

PEERS = 256
"""Peers named in one event: an id has 53 bytes, and an event 16 KiB."""

BUNDLED = 128
"""Events in one gossiped message: one has at least 90 bytes, so that a message of 4 KiB holds about forty,
compressed a few more."""


class Event(msgspec.Struct, frozen=True, kw_only=True, tag_field="event", tag=str.lower):
    at: Finite
    """Unix seconds by the clock of `peer`."""
    peer: PeerId


class Started(Event):
    name: Word
    role: Role
    version: int
    hardware: Word


class Left(Event):
    name: Word
    reason: Text


class Heard(Event):
    """A heartbeat, as its receiver saw it. `peer` is the receiver; `subject` sent it."""

    subject: PeerId
    beat: Beat


class Lost(Event):
    """A peer that has been silent for longer than the roster's patience."""

    subject: PeerId
    silent: Finite
    """Seconds since its last heartbeat."""


class Sampled(Event):
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
    """Histogram of the trained groups' lag in versions at training: lag -> groups."""
    seconds: Annotated[dict[Word, int], Meta(max_length=LAGS)]
    """Histogram of the trained groups' age in seconds, by power of two: upper bound -> groups."""
    samplers: Annotated[dict[PeerId, Sums], Meta(max_length=PEERS)]
    """Sampler -> verdict -> groups."""


Figures = Annotated[tuple[Finite, ...], Meta(max_length=COMPLETIONS)]


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
    """Importance weights as the objective used them, the mean over a completion's tokens; 0 outside its trust
    region."""


class Moved(Event):
    """A learner's round changed state."""

    version: int
    state: Word
    cause: Word


class Averaged(Event):
    version: int
    members: Annotated[tuple[PeerId, ...], Meta(max_length=PEERS)]
    seconds: Finite
    scaled: Annotated[dict[PeerId, Finite], Meta(max_length=PEERS)] = {}
    """Learner -> factor, for each gradient that was scaled down because its norm is far beyond the usual."""


class RoundBroke(Event):
    version: int
    reason: Text


class Trained(Event):
    """One optimizer step: the learner is at `version` now."""

    version: int
    groups: int
    members: int
    metrics: Annotated[dict[Word, Finite], Meta(max_length=256)]
    """reward, kl (nats per token), ess (0..1), weight_var, weight_max, grad_norm, entropy (nats), zero (share
    of samples with weight zero), flat (share of groups with equal rewards), cosine (between the gradients of
    two half batches), length (tokens), lag_versions, lag_seconds, ..."""
    gather: Finite
    learn: Finite
    average: Finite
    step: Finite
    """Seconds of the four phases."""


class Released(Event):
    release: Release


class Adopted(Event):
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
    version: int
    behind: int
    """Versions that were missed."""


class Evaluated(Event):
    version: int
    accuracy: Finite
    """Greedy exact match on held-out tasks, 0 to 1."""
    tasks: int


class Saved(Event):
    """A checkpoint is on the disk."""

    version: int
    seconds: Finite


class Transferred(Event):
    """Bytes that passed between this peer and others, by purpose: `rollouts`, `weights`, `gradients`,
    `gossip`, `other`."""

    seconds: Finite
    """Seconds in which they passed: since the peer's last Transferred."""
    sent: Sums
    received: Sums
    links: Annotated[dict[PeerId, Link], Meta(max_length=PEERS)]
    """By peer id, those with the most bytes."""


class Faulted(Event):
    """Something of ours broke and is being replaced."""

    part: Word
    """A Part of swarm.protocol."""
    detail: Text


class Recovered(Event):
    part: Word
    seconds: Finite


class Rejected(Event):
    """A frame, record or chunk that was not believed. Data, not a crash."""

    sender: PeerId
    kind: str
    reason: str


class Noted(Event):
    """A plain sentence for the person who watches."""

    level: str
    """`info`, `warning` or `error`."""
    text: str


AnyEvent = (
    Started
    | Left
    | Heard
    | Lost
    | Sampled
    | Judged
    | Counted
    | Shown
    | Moved
    | Averaged
    | RoundBroke
    | Trained
    | Released
    | Adopted
    | Snapped
    | CaughtUp
    | Evaluated
    | Saved
    | Transferred
    | Faulted
    | Recovered
    | Rejected
    | Noted
)

Gossiped = (
    Started
    | Left
    | Counted
    | Shown
    | Moved
    | Averaged
    | RoundBroke
    | Trained
    | Adopted
    | Snapped
    | CaughtUp
    | Evaluated
    | Transferred
    | Faulted
    | Recovered
)
"""What the page needs from others, every text and collection of it bounded; beats and releases have topics of
their own."""

GOSSIPED = get_args(Gossiped)
Bundle = Annotated[list[Gossiped], Meta(max_length=BUNDLED)]
"""One message of gossip."""

TOLD = 2000
"""Bytes of a text in an event: a person reads no more, and with the rest of the event it fits into a message
of gossip."""

_BLOCK = 64 << 10
"""Bytes read at a time while looking for a journal's last whole line: many times the longest event."""

_json = msgspec.json.Encoder()
_decoder: msgspec.json.Decoder[AnyEvent] = msgspec.json.Decoder(AnyEvent)


class Bus:
    """Hands each event to every sink, in the order in which they were added."""

    def __init__(self) -> None:
        self._sinks: list[Callable[[Event], None]] = []

    def add(self, sink: Callable[[Event], None]) -> None:
        self._sinks.append(sink)

    def emit(self, event: Event) -> None:
        for sink in self._sinks:
            sink(event)


class Journal:
    """A sink that appends events to a file, one JSON object a line, flushed after each: a crash loses no
    whole event.

    A disk that takes no more, or fails, costs events and not the peer; `lost` counts them.
    """

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path = path
        self._file: IO[bytes] = open(path, "a+b", buffering=0)  # noqa: SIM115 (closed by close(); it lives as long as the peer)
        self._size = _whole_lines(self._file)
        self._file.truncate(self._size)
        self._torn = False
        """The file may end in a part of a line, which would run into the next event."""
        self.lost = 0

    def __call__(self, event: Event) -> None:
        line = to_line(event)
        try:
            self._mend()
            self._torn = self._file.write(line) != len(line)
        except OSError:
            self._torn = True
        if self._torn:
            self.lost += 1
        else:
            self._size += len(line)

    def close(self) -> None:
        if not self._file.closed:
            with contextlib.suppress(OSError):  # all that can be kept is on the disk
                self._mend()
                os.fsync(self._file.fileno())
            self._file.close()

    def _mend(self) -> None:
        if self._torn:
            self._file.truncate(self._size)
            self._torn = False


def cut(text: str, size: int = TOLD) -> str:
    """The text's first `size` bytes at most, cut between characters; what is no character becomes a question
    mark."""
    if text.isascii():
        return text[:size]
    return text.encode(errors="replace")[:size].decode(errors="ignore")


def _whole_lines(file: IO[bytes]) -> int:
    """Bytes up to the end of the last whole line; a killed writer may have left a part of one after it."""
    end = file.seek(0, os.SEEK_END)
    while end > 0:
        start = max(0, end - _BLOCK)
        file.seek(start)
        found = file.read(end - start).rfind(b"\n")
        if found >= 0:
            return start + found + 1
        end = start
    return 0


def to_line(event: Event) -> bytes:
    return _json.encode(event) + b"\n"


def from_line(line: bytes) -> AnyEvent:
    """Raises msgspec.DecodeError on a line that is no event."""
    try:
        return _decoder.decode(line)
    except (UnicodeDecodeError, RecursionError) as error:  # msgspec lets Python's own through
        raise msgspec.DecodeError(str(error)) from error


def read_journal(path: Path) -> Iterator[AnyEvent]:
    """Events of a journal in order. A torn last line (the process was killed while writing) ends the
    reading."""
    with open(path, "rb") as file:
        for line in file:
            if not line.endswith(b"\n"):
                return
            yield from_line(line)


__all__ = [
    "GOSSIPED",
    "AnyEvent",
    "Bundle",
    "Bus",
    "Event",
    "Journal",
    "Lag",
    "cut",
    "from_line",
    "read_journal",
    "to_line",
]
