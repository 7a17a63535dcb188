"""How fast releases spread: for each of the newest ones, the seconds until each peer had it or a newer one.

Takes releases, and the versions that peers have with their times; shows first, median and last. A peer counts
once for a release, when it gets it or a newer one. A peer that is first seen at a version is not timed for
it, since it may have had it for long; neither is the publisher. A claim of a version that is not released yet
is kept until the release, for the next two versions only.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Mapping

import msgspec

from dashboard.text import clean, moment, number, proper, whole
from dashboard.views import ReleaseView
from swarm.types import Release

KEPT = 64
"""Releases that are tracked: after as many later versions a spread is over."""

EARLY = 2
"""Versions beyond the newest release that a peer may have: events of a step may arrive before the release."""

SLOWEST = 1e7
"""Seconds; a larger value comes from a wrong clock."""


class ReleaseSpread(msgspec.Struct):
    """The spread of one release."""

    since: float
    """When it was released: the earlier time of the publisher's clock and this peer's."""
    seconds: list[float] = []
    """Seconds until each timed peer had it, sorted."""
    revision: int = 0


class Spreads(msgspec.Struct):
    most: int = 1000
    """Peers that are followed."""
    known: dict[int, ReleaseSpread] = {}
    reached: dict[str, int] = {}
    """Peer -> the newest release that it had."""
    early: dict[str, tuple[int, float]] = {}
    """Peer -> (version ahead of the newest release, when the peer claimed it)."""

    def release(self, release: Release, now: float, revision: int) -> None:
        if release.version in self.known:  # a release trained on more groups replaced it
            self.known[release.version].revision = revision
            return
        newest = max(self.known, default=-1)
        if release.version < newest - KEPT:
            return
        self.known[release.version] = ReleaseSpread(min(moment(release.released), now), [], revision)
        while len(self.known) > KEPT:
            del self.known[min(self.known)]
        if release.publisher in self.reached or len(self.reached) < self.most:
            self.reached[release.publisher] = max(self.reached.get(release.publisher, -1), release.version)
        for peer, (version, at) in list(self.early.items()):
            if version <= max(newest, release.version):
                del self.early[peer]
                self.reach(peer, version, at, revision)

    def reach(self, peer: str, version: int, at: float, revision: int, age: float | None = None) -> None:
        """Record that `peer` has `version` at `at`; `age`: seconds after the release, when the peer timed it
        itself."""
        newest = max(self.known, default=-1)
        if newest < version <= newest + EARLY and len(self.early) < self.most:
            self.early.setdefault(peer, (version, at))
        version = min(version, newest)
        before = self.reached.get(peer)
        if before is None:
            if len(self.reached) >= self.most:
                return
            before = version - 1 if age is not None else version
            self.reached[peer] = before
        if version <= before:
            return
        self.reached[peer] = version
        for passed in [passed for passed in self.known if before < passed <= version]:
            spread = self.known[passed]
            own = age if age is not None and passed == version else at - spread.since
            if len(spread.seconds) < self.most:
                insort(spread.seconds, round(number(own, high=SLOWEST), 3))
                spread.revision = revision

    def drop(self, peer: str) -> None:
        self.reached.pop(peer, None)
        self.early.pop(peer, None)

    def changed(self, version: int) -> int:
        """Revision at which this release last reached a peer."""
        return self.known[version].revision if version in self.known else 0

    def view(self, release: Release, at: Mapping[int, int], of: int) -> ReleaseView:
        """`at`: version -> peers alive that use it; `of`: peers alive that use a policy."""
        spread = self.known.get(release.version)
        seconds = spread.seconds if spread else []
        return ReleaseView(
            version=release.version,
            released=moment(release.released),
            publisher=release.publisher,
            weights=clean(release.weights[:12]),
            size=whole(release.size),
            patch=whole(release.patches[0].size) if release.patches else None,
            groups=whole(release.groups),
            learners=whole(release.learners),
            of=of,
            have=sum(peers for version, peers in at.items() if version >= release.version),
            first=seconds[0] if seconds else None,
            median=seconds[(len(seconds) - 1) // 2] if seconds else None,
            last=seconds[-1] if seconds else None,
        )

    def sanitize(self, most: int) -> None:
        """Clip a part from a snapshot to the bounds that a fold keeps."""
        self.most = most
        self.known = {version: self.known[version] for version in sorted(self.known)[-KEPT:]}
        for spread in self.known.values():
            spread.since, spread.revision = moment(spread.since), whole(spread.revision)
            spread.seconds = sorted(number(seconds, high=SLOWEST) for seconds in spread.seconds[:most])
        self.reached = {peer: version for peer, version in list(self.reached.items())[:most] if proper(peer)}
        self.early = {peer: claim for peer, claim in list(self.early.items())[:most] if proper(peer)}
