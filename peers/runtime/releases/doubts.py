"""Which announced releases a peer follows: those that continue from another, to a version that half of the
learners are near, and that half of them do not deny.

    more than LEAD versions beyond half of the learners' -> it waits until they are near
    continues from a version that was not announced
                                           -> its line is asked for; refused where that leads nowhere
    the same by a publisher that was refused TRIES times in a row
                                           -> refused at once, for a while
    half of the learners deny it           -> refused                      (peers.runtime.releases.votes)

All are reported, with the name of the publisher. A learner that is so far ahead, after it was cut off, waits
for the others. The versions of half of the learners are known by their heartbeats, which are signed; with
fewer than three learners there is no majority, and each release is trusted. Not handled here: a release of a
round's member that differs from the round's result (peers.learner.agreement.other_bytes).
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

from peers.runtime.kernel import Kernel
from peers.runtime.releases.lines import ReleaseLines
from peers.runtime.releases.votes import Against, ReleaseVotes
from swarm import events
from swarm.core.agreement.releases import PUBLISHERS, Releases, rank
from swarm.core.roster import NO_PEER
from swarm.limits import remember
from swarm.protocol import Role, Topic
from swarm.types import Beat, Digest, PeerId, Release

REMEMBERED = 64
"""Versions whose releases are remembered, beside those of the run's window: their successors are judged by
them."""

LEAD = 64
"""Versions by which one learner may be ahead of half of them: as many as one makes alone while the others
compute a gradient, or in a part of the swarm that was cut off for some minutes."""

TRIES = 3
"""Refused releases of a publisher in a row before its next ones are not asked for: each costs a learner the
gradient that it computes, and of an honest one an answer or two may be lost."""

QUIET = 30.0
"""Seconds for which they are not; doubled with each refused one after that, up to LONGEST."""

LONGEST = 3600.0
"""Seconds: a doubt in an hour costs nothing, and a publisher that was cut off is accepted again on the same
day."""


class ReleaseDoubts:
    def __init__(self, kernel: Kernel, lines: ReleaseLines, moved: Callable[[], None]) -> None:
        """`moved` wakes whoever waits for a release."""
        run = kernel.config.run
        self._kernel, self._lines, self._moved = kernel, lines, moved
        self.votes = ReleaseVotes(kernel, lines, self._is_disbelieved)
        keep = max(REMEMBERED, run.window.versions + 1)
        self.candidates = Releases(keep, run.pace.patience, self.ceiling, self.votes.denies)
        """Announced releases, and the state of their bytes."""
        self._refused: OrderedDict[PeerId, tuple[int, float]] = OrderedDict()
        """Publisher -> its releases that were refused in a row, until when its next ones are refused at once;
        the last PUBLISHERS."""

    def ceiling(self, publisher: PeerId) -> float:
        """The highest version of a publisher that is believed now."""
        return self._halfway(publisher) + LEAD

    def above(self, mine: Release | None) -> tuple[Any, ...]:
        """The rank that a release must exceed to be better than mine: none where mine is not believed."""
        if mine is None or mine.version > self.ceiling(mine.publisher):
            return ()
        return () if self.candidates.is_disbelieved(mine) else rank(mine)

    def look(self, release: Release) -> None:
        """Report a new release that is not trusted."""
        if against := self.votes.receive(release):
            self._deny(release, against)
        half = self._halfway(release.publisher)
        if release.version > half + LEAD:
            self._report(release, f"half of the learners are at version {half:g}, more than {LEAD} before it")
        elif self._kernel.now() < self._refused.get(release.publisher, (0, 0.0))[1] and not self.is_next(
            release
        ):
            self.candidates.disbelieve(release)

    def receive(self, beat: Beat) -> None:
        """Refuse what enough learners deny since this heartbeat came."""
        for release, against in self.votes.refused(beat):
            self._deny(release, against)

    def _deny(self, release: Release, against: Against) -> None:
        if not self.candidates.is_disbelieved(release):
            self.candidates.disbelieve(release)
            self._moved()
            self._report(release, against.reason, against.names)

    def is_refused(self, version: int, weights: Digest) -> bool:
        """Were these weights announced, and is no announcement of them believed?"""
        known = self.candidates.known(version, weights)
        return bool(known) and all(map(self.candidates.is_disbelieved, known))

    def is_next(self, release: Release) -> bool:
        """Whether it continues from an announced one, or is the first one here."""
        known = self._lines.lineage.knows((release.version - 1, release.parent))
        return known or release.version <= 0 or self.candidates.held is None

    async def leads_on(self, release: Release) -> bool:
        """Whether it continues from a known one, as far as other peers can prove. Where it does not it is
        refused."""
        mine = self.candidates.held_beside(release)
        if mine is None or self.is_next(release):
            return True
        versions, half = {known.version for known in self.announced()}, self._halfway(release.publisher)
        if half == math.inf or (release.version - 1 not in versions and release.version <= half):
            return True  # without a majority, or after an absence, there is nothing to check against
        if await self._lines.fork((mine.version, mine.weights), release) is not None:
            if self.votes.denies(release):
                return False
            self._refused.pop(release.publisher, None)
            return True
        self._refuse(release)
        self._report(release, f"no learner shows how its parent {release.parent[:12]} was made")
        return False

    def _refuse(self, release: Release) -> None:
        """It is false; after TRIES of them so are the others that its publisher announced."""
        publisher = release.publisher
        count = self._refused.get(publisher, (0, 0.0))[0] + 1
        quiet = min(QUIET * 2.0 ** (count - TRIES), LONGEST) if count >= TRIES else 0.0
        remember(self._refused, publisher, (count, self._kernel.now() + quiet), PUBLISHERS)
        others = [other for other in self.announced() if other.publisher == publisher] if quiet else []
        for false in [release, *(other for other in others if not self.is_next(other))]:
            self.candidates.disbelieve(false)
        self._moved()

    def announced(self) -> list[Release]:
        """All releases that are remembered, by version."""
        every = (release for same in self.candidates.by_weights().values() for release in same)
        return sorted(every, key=lambda release: release.version)

    def _is_disbelieved(self, release: Release) -> bool:
        return self.candidates.is_disbelieved(release)

    def _halfway(self, publisher: PeerId) -> float:
        kernel = self._kernel
        mine = kernel.status.version if kernel.who.role is Role.LEARNER else -1
        return kernel.roster.halfway(mine, NO_PEER if publisher == kernel.ports.me else publisher)

    def _report(self, release: Release, why: str, names: bool = True) -> None:
        """`names`: its publisher lied."""
        if names:
            reason = f"version {release.version} is not followed: {why}"
            self._kernel.emit(events.Rejected, sender=release.publisher, kind=Topic.RELEASE, reason=reason)
        else:
            text = f"version {release.version} of {release.publisher} is not followed: {why}"
            self._kernel.emit(events.Noted, level="warning", text=text)
