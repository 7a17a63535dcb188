"""What a learner knows of the versions that it helped to make: which releases of others it denies.

    a round of most learners, me among them -> I am a witness of its version
        no round of most comes about, or it takes too long -> I am none until the next one
        I begin to take over another learner's state       -> the same
        I take a release of another line                   -> the same

A witness denies a release that goes on from its version, or stands beside it, when it was in no round with
its publisher: most learners are busy with that version, and such a release is one's own work. Where a line
parts further back, its publisher must have been heard all the time since: else it may have been cut off.
Denials are votes (peers.runtime.releases.votes). Not handled here: who is in the majority, what is heard.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection
from dataclasses import dataclass

from swarm.types import PeerId

SLACK = 4.0
"""Times what the last version took: a witness waits for the next round for so long."""

REMEMBERED = 64
"""Versions; a line that parts further back is not denied."""


@dataclass(frozen=True, slots=True)
class Made:
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
        self._made: OrderedDict[int, Made] = OrderedDict()
        self._gave_up = -1
        """The newest version from which no round of most came about."""

    def averaged(self, version: int, members: Collection[PeerId], now: float) -> None:
        """A round of most learners, with these members, made the version after `version`."""
        before = self._made.get(version)
        took = now - before.began if before is not None else 0.0
        until = now + SLACK * (took + self._match)
        self._made[version + 1] = Made(frozenset(members), now, until)
        if len(self._made) > REMEMBERED:
            self._made.popitem(last=False)

    def members(self, version: int) -> Collection[PeerId]:
        """Of the round that made it; nobody where that was none of mine."""
        return self._made[version].members if version in self._made else ()

    def ended(self) -> float:
        """When my newest round ended."""
        return next(reversed(self._made.values())).began if self._made else 0.0

    def gave_up(self, version: int) -> None:
        """No round of most learners came about from this version."""
        self._gave_up = version

    def left(self) -> None:
        """I take over another learner's state: others have heard that I am no witness, and act by it."""
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
        """Is a release of version `theirs` its publisher's own work? My released version is `version`;
        `parts`: the last version that its line shares with mine, None where that is not known;
        `heard_since`: since when its publisher is heard."""
        made = self._made.get(theirs)
        if parts is None or (made is not None and publisher in made.members):
            return False
        first = self._made.get(parts + 1)
        return parts >= version - 1 or (first is not None and heard_since <= first.began)
