"""A learner's knowledge of the versions that it helped to make: which releases of others it denies.

    a round of most learners, this one among them       -> it is a witness of its version
        no round of most follows, or it takes too long  -> it is none until the next one
        it begins to sync from another learner          -> the same
        it loads a release of another line              -> the same

A witness denies a release that continues from its version, or stands beside it, when it was in no round with
its publisher: most learners are busy with that version, and such a release is one learner's own work. Where
a line parts further back, its publisher must have been present all the time since: else it may have been cut
off. Denials are votes (peers.runtime.releases.votes). Not handled here: which learners are the majority.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection
from dataclasses import dataclass

from swarm.types import PeerId

SLACK = 4.0
"""In durations of the last version: a witness waits for the next round for so long."""

REMEMBERED = 64
"""Versions; a line that parts further back is not denied."""


@dataclass(frozen=True, slots=True)
class RecordedVersion:
    """A version that a round of most learners made."""

    members: frozenset[PeerId]
    began: float
    """When the round ended, and the version began."""
    until: float
    """Until when its witness waits for the next one."""


class Witness:
    """One learner's knowledge. Times are in seconds of one clock."""

    def __init__(self, match: float) -> None:
        """`match`: seconds to find the others of a round."""
        self._match = match
        self._made: OrderedDict[int, RecordedVersion] = OrderedDict()
        self._gave_up = -1
        """The newest version from which no round of most came about."""

    def averaged(self, version: int, members: Collection[PeerId], now: float) -> None:
        """A round of most learners, with these members, made the version after `version`."""
        before = self._made.get(version)
        took = now - before.began if before is not None else 0.0
        until = now + SLACK * (took + self._match)
        self._made[version + 1] = RecordedVersion(frozenset(members), now, until)
        if len(self._made) > REMEMBERED:
            self._made.popitem(last=False)

    def members(self, version: int) -> Collection[PeerId]:
        """Members of the round that made it; none where that was no round of this learner's."""
        return self._made[version].members if version in self._made else ()

    def ended(self) -> float:
        """When my newest round ended."""
        return next(reversed(self._made.values())).began if self._made else 0.0

    def gave_up(self, version: int) -> None:
        """No round of most learners came about from this version."""
        self._gave_up = version

    def left(self) -> None:
        """This learner syncs from another: others know by now that it is no witness, and act on that."""
        self._gave_up = max(self._gave_up, *self._made, -1)

    def took(self) -> None:
        """My version is another learner's, made without me."""
        self._made.clear()

    def stands(self, version: int, now: float) -> bool:
        """Am I a witness? `version` is my released one."""
        newest = version + 1 if version + 1 in self._made else version
        made = self._made.get(newest)
        return made is not None and self._gave_up < newest and now < made.until

    def denies(
        self, version: int, theirs: int, publisher: PeerId, parts: int | None, heard_since: float
    ) -> bool:
        """Whether a release of version `theirs` is its publisher's own work. This learner's released version
        is `version`; `parts`: the last version that both lines share, None where unknown; `heard_since`:
        since when its publisher has been present."""
        made = self._made.get(theirs)
        if parts is None or (made is not None and publisher in made.members):
            return False
        first = self._made.get(parts + 1)
        return parts >= version - 1 or (first is not None and heard_since <= first.began)
