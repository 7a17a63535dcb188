"""A learner's announcement to a group that forms, and the conclusions that all members draw alike.

    Announcement --hivemind's `gather`, in each request--> read_announcement, at the leader and all members
    all of a group's --> false_reducers: members that reduce nothing in its round

In come bytes of another learner: sizes and ranges are checked first. Not handled: how a group forms
(swarm.net.averaging.matching), the weight of the claims
(swarm.core.gradient_checks.norm_screening).
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping
from typing import Annotated

import msgspec
from hivemind.p2p import PeerID
from msgspec import Meta

from swarm.core.agreement.shares import USUAL_PART, AnnouncedLine
from swarm.core.gradient_checks.majority import named_by_most
from swarm.core.gradient_checks.norm_screening import AnnouncedNorm
from swarm.limits import UNREADABLE
from swarm.norm import LARGEST
from swarm.types import MARK_BYTES, MARKED

MAX_WEIGHT = 1e6
"""A weight is a number of groups; no learner has more than a million in one round."""

MAX_ANNOUNCEMENT = 24 << 10
"""8 bytes for each invited peer, for each one named or doubted and for each of MARKED groups: room for a
thousand learners, of which fewer than half are named, and doubted."""

Tags = Annotated[tuple[Annotated[bytes, Meta(max_length=8)], ...], Meta(max_length=MAX_ANNOUNCEMENT // 8)]


class MatchError(Exception):
    """Another learner's announcement is malformed or out of range."""


class Announcement(msgspec.Struct, frozen=True):
    """A learner's announcement to a group that forms (hivemind's `gather`)."""

    v: int
    """Version that it averages for."""
    weight: float
    norm: float
    usual: float
    """`weight`, `norm` and `usual`: see swarm.core.gradient_checks.norm_screening.AnnouncedNorm. A weight of
    0 is that of no groups."""
    dial_only: bool
    """It cannot be dialled, so it asks all others."""
    uplink: Annotated[int, Meta(ge=0)]
    """Bytes per second; 0: it does not know. See swarm.core.agreement.shares."""
    invited: Tags
    """Tags of the peers that it averages with, itself included."""
    marks: Annotated[bytes, Meta(max_length=MARK_BYTES * MARKED)] = b""
    """Of the groups that its gradient is of (swarm.core.agreement.trained)."""
    weights: Annotated[str, Meta(max_length=64)] = ""
    """Of the version: parts of a swarm that was cut have several of one number."""
    against: Tags | None = ()
    """Tags of the peers that it has proof against (swarm.core.gradient_checks.recomputed). None comes from
    earlier programs alone and names none."""
    doubted: Tags = ()
    """Tags of the peers whose means leave its gradient out (swarm.core.gradient_checks.reducer_checks)."""
    part: int = USUAL_PART
    """Bytes of the largest part that it takes (swarm.core.agreement.shares)."""

    @property
    def claim(self) -> AnnouncedNorm:
        """Its claim about its gradient."""
        return AnnouncedNorm(self.weight, self.norm, self.usual)

    @property
    def line(self) -> AnnouncedLine:
        """Its claim about its line."""
        return AnnouncedLine(self.uplink, self.dial_only, self.part)


def read_announcement(raw: bytes) -> Announcement:
    """Decode an announcement. Raises MatchError."""
    if len(raw) > MAX_ANNOUNCEMENT:
        raise MatchError(f"an announcement of {len(raw)} bytes, at most {MAX_ANNOUNCEMENT} are read")
    try:
        announcement = msgspec.msgpack.decode(raw, type=Announcement)
    except UNREADABLE as error:
        raise MatchError(f"an announcement cannot be read: {error}") from error
    if not 0 <= announcement.weight <= MAX_WEIGHT:
        raise MatchError(
            f"a member announced the weight {announcement.weight}, which is not in [0, {MAX_WEIGHT:g}]"
        )
    if not all(0 <= norm <= LARGEST for norm in (announcement.norm, announcement.usual)):
        raise MatchError(
            f"a member announced the norms {announcement.norm} and {announcement.usual},"
            f" which are not both in [0, {LARGEST:g}]"
        )
    return announcement


def tag(peer: PeerID) -> bytes:
    """Identifies a peer among those of a round."""
    return hashlib.blake2b(peer.to_bytes(), digest_size=8).digest()


def false_reducers(told: Mapping[PeerID, Announcement]) -> Collection[PeerID]:
    """Members of a group that reduce nothing, since more than half of the others doubt their means; none
    where no other can be dialled."""
    tags = named_by_most({tag(peer): one.doubted for peer, one in told.items()})
    others = [peer for peer, one in told.items() if tag(peer) not in tags and not one.line.dial_only]
    return [peer for peer in told if tag(peer) in tags] if others else ()


def lines_of(told: Mapping[PeerID, Announcement], false: Collection[PeerID]) -> list[AnnouncedLine]:
    """The lines of a group's members; one that is to reduce nothing has a line that cannot be dialled."""
    return [one.line._replace(dial_only=one.dial_only or peer in false) for peer, one in told.items()]
