"""Which announced releases a peer follows: one that goes on from another, to a version that half of the
learners are near.

    more than LEAD versions beyond what half of the learners have -> it waits until they have come
    goes on from another version than those that were announced
                                           -> its line is asked for; refused where that leads nowhere

Both are told, with the name of who announced it. A learner that finds itself so far ahead, after it was cut
off, waits for the others. What half of the learners have is known by their heartbeats, which are signed;
with fewer than three learners nobody is in the majority, and each is believed. Not handled: the next version
by a learner that lies, which may be made by a learner alone and looks as one made alone by honest work.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from swarm import events
from swarm.core.releases import rank
from swarm.core.roster import NOBODY
from swarm.protocol import Role, Topic
from swarm.types import PeerId, Release

if TYPE_CHECKING:
    from peers.runtime.host import Host
    from peers.runtime.release_lines import ReleaseLines

LEAD = 64
"""Versions by which one learner may be ahead of half of them: what one makes alone while the others compute a
gradient, or in a part of the swarm that was cut off for some minutes."""


class ReleaseDoubts:
    def __init__(self, host: Host, lines: ReleaseLines) -> None:
        self._host, self._lines = host, lines

    def ceiling(self, publisher: PeerId) -> float:
        """The highest version of a publisher that is believed now."""
        return self._halfway(publisher) + LEAD

    def above(self, mine: Release | None) -> tuple[Any, ...]:
        """The rank that a release must exceed to be better than mine: none where mine is not believed."""
        return rank(mine) if mine is not None and mine.version <= self.ceiling(mine.publisher) else ()

    def look(self, release: Release) -> None:
        """Tell of a release that is new and not believed."""
        half = self._halfway(release.publisher)
        if release.version > half + LEAD:
            self._tell(release, f"half of the learners are at version {half:g}, more than {LEAD} before it")

    def is_next(self, release: Release) -> bool:
        """Does it go on from one that was announced, or is it the first one here?"""
        known = self._lines.lineage.knows((release.version - 1, release.parent))
        return known or release.version <= 0 or self._host.releases.held is None

    async def leads_on(self, release: Release) -> bool:
        """Does it go on from what is known, as far as others can show? Where it does not it is refused."""
        releases = self._host.releases
        mine = releases.candidates.held_beside(release)
        if mine is None or self.is_next(release):
            return True
        versions, half = {known.version for known in releases.announced()}, self._halfway(release.publisher)
        if half == math.inf or (release.version - 1 not in versions and release.version <= half):
            return True  # nobody is in the majority, or I was away
        if await self._lines.fork((mine.version, mine.weights), release) is not None:
            return True
        releases.candidates.disbelieve(release)
        releases.move()
        self._tell(release, f"nobody shows how its parent {release.parent[:12]} was made")
        return False

    def _halfway(self, publisher: PeerId) -> float:
        host = self._host
        mine = host.status.version if host.who.role is Role.LEARNER else -1
        return host.roster.halfway(mine, NOBODY if publisher == host.ports.me else publisher)

    def _tell(self, release: Release, why: str) -> None:
        reason = f"version {release.version} is not followed: {why}"
        self._host.emit(events.Rejected, sender=release.publisher, kind=Topic.RELEASE, reason=reason)
