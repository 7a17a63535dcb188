"""Size limits of messages between peers, and of remembered ones: frames, records, requests. Errors of
decoding.

A limit is checked before anything is decoded, so that no stranger decides how much memory a frame takes. Not
handled here: which limit is whose (swarm.protocol), limits of nouns inside a frame (swarm.types).
"""

from __future__ import annotations

from collections import OrderedDict
from typing import NamedTuple, TypeVar

import msgspec

K = TypeVar("K")
V = TypeVar("V")

UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""What msgspec raises for bytes that are nothing of the type that is asked for: it lets two of Python's own
through."""


class Limit(NamedTuple):
    """Size limits of one kind of frame."""

    sealed: int
    """Bytes on the network."""
    inflated: int
    """Bytes of its envelope: one byte can decode to an object of fifty."""


FRAME_LIMIT = 4 << 20
"""p2pd's own limit of a unary call; streams keep to it: a peer can always hold `streams x limit`."""

RECORD_LIMIT = 1024
"""The pipe of hivemind's DHT process breaks above about 16 KiB; 1 KiB holds every record we have."""

RECORD_SECONDS = 120.0
"""Longest life of a record: its peer refreshes it at a third of that, so that two losses cost nothing."""

ID_LIMIT = 64
"""Bytes of a libp2p id: that of an Ed25519 key has 38, none has more than 44. Held before an id is written in
base58, which takes time that grows with the square of the length."""

BEAT_LIMIT = Limit(1792, 4 << 10)
"""A learner's largest one is 1,600 bytes beside a renewed membership of a private run."""

BALLOTS = 64
"""Votes that a release carries: most of 127 learners."""

RELEASE_LIMIT = Limit(10 << 10, 16 << 10)
"""140 bytes for each vote."""

EVENT_LIMIT = Limit(4096, 16 << 10)
"""Text and names compress three to four times, so an honest envelope does not inflate further."""

SLOWEST = 64.0
"""Times the run's pace that a peer may wait between heartbeats: two minutes by default, in a swarm of
30,000."""

MAIL_LIMIT = Limit(FRAME_LIMIT, 4 * FRAME_LIMIT)
"""The largest frame of any kind; incoming frames have the limit of their kind, for example group_limit."""

WAY_STEPS = 24
"""Patches of one way between versions: up to the first rung, rungs, and down from the last one, over as many
versions as patches are held for (`swarm.core.agreement.patch_path`)."""

WAY_BASES = 8
"""Versions that a question for a way names as held, the newest first: a way from an older one is hardly
smaller than the whole."""

LINE_VERSIONS = 1024
"""Versions of a line of releases in one answer: 70 KB."""

REQUEST = 8 << 10
"""Bytes of a request, for example a name, in a private run inside a frame with a membership."""

REASON_LIMIT = 500
"""Bytes of a refusal's reason, for its sender and its receiver."""

TEXT_LIMIT = 2000
"""Bytes of a text in an event: with the rest of the event it fits into a message of gossip."""


def cut(text: str, size: int = TEXT_LIMIT) -> str:
    """At most the first `size` bytes of a text in UTF-8, cut between characters; a lone surrogate becomes a
    question mark."""
    if text.isascii():
        return text[:size]
    return text.encode(errors="replace")[:size].decode(errors="ignore")


def remember(known: OrderedDict[K, V], key: K, value: V, most: int) -> None:
    """Take this as the newest of `known`, of which the `most` newest are kept."""
    known[key] = value
    known.move_to_end(key)
    if len(known) > most:
        known.popitem(last=False)
