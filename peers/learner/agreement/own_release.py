"""Packs and publishes a learner's own version beside its round, and compares it with the releases of others.

    a step, a load -> begin: the snapshot of its version                                in the round
    run            -> packed: its digest, blocks held                                   beside it
                      its turn: patches made, announced      is_settled: it is the release of its version
                                                             is_overtaken: a better release is here or
                                                             worth waiting for

Invariant: the released weights are the truth. A learner reports a version in its heartbeat, and averages a
gradient of it, only once that version is released with its own digest. It computes that gradient earlier
where the version that it stepped to before became the release unchanged. Only the publisher makes patches.
Not handled here: how a better release is loaded (peers.learner.agreement.catch_up), how releases travel
(peers.runtime.releases.exchange).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from typing import Any, NamedTuple

from peers.learner.agreement.next_release import NextRelease
from peers.learner.agreement.other_learners import OtherLearners
from peers.learner.checkpoints import Progress
from peers.runtime.host import Host
from swarm.core.agreement.lineage import Point
from swarm.core.agreement.releases import publishers, rank
from swarm.learn.files.weights import Snapshot
from swarm.learn.learners.base_learner import BaseLearner
from swarm.storage.weights import Weights
from swarm.types import Digest, PeerId, Release


class Had(NamedTuple):
    """The version that a learner had before it took another release."""

    version: int
    weights: Digest
    """Empty until they are packed."""
    parent: Digest
    members: Collection[PeerId]
    """Of the round that made it; empty where it was loaded."""
    released: Point
    """The version itself; where it was not released the one before."""

    def is_of_its_round(self, release: Release) -> bool:
        """Whether another member released a result of the same round: the same groups, but other bytes."""
        same = (release.version, release.parent) == (self.version, self.parent)
        return same and release.publisher in self.members


class OwnRelease:
    def __init__(
        self, host: Host, learner: BaseLearner, other_learners: OtherLearners, idle: Callable[[], bool]
    ) -> None:
        """`idle()` is whether the round has nothing to do."""
        self.host, self.learner, self._other_learners = host, learner, other_learners
        self.next = NextRelease(host, self.above, idle)
        self.made_of = Progress(parent=Digest(""))
        """What my version was made of."""
        self.due: float | None = None
        """When it is my turn to publish my version; None while it is not."""
        self._members: Collection[PeerId] = ()
        """Of the round that made this version; empty where it was loaded."""
        self._snapshot: Snapshot | None = None
        """My version, until it is packed."""
        self._packed: Weights | None = None
        self._prepared: Release | None = None
        """My version as the release that I would publish."""
        self._first = False
        """This learner is first in the order of publishers of its version, and has not tried yet."""
        self._news = asyncio.Event()

    @property
    def weights(self) -> Digest:
        """Digest of my version's weights, as they would be released; empty until they are packed."""
        return self._packed.digest if self._packed is not None else Digest("")

    def at_rest(self) -> Point | None:
        """My version and its weights; None while they are about to be others."""
        rests = self.weights and not self._other_learners.is_changing
        return (self.learner.version, self.weights) if rests else None

    def had(self) -> Had:
        """My version, as it is now."""
        version, known = self.learner.version, self.host.releases.lines.lineage.knows
        mine, parent = (version, self.weights), self.made_of.parent
        released = mine if version <= 0 or known(mine) else (version - 1, parent)
        return Had(version, self.weights, parent, self._members, released)

    # --- mine and others' -----------------------------------------------------------------------------------

    def above(self) -> tuple[Any, ...]:
        """The rank that a better release must exceed: that of this version once it is released; until then
        every release of this version is better, and only those of later ones while this one cannot be
        compared. Any credible release is better than a refused one."""
        if self._packed is None:
            return (self.learner.version + 1,)
        if self.host.releases.doubts.is_refused(self.learner.version, self.weights):
            return ()
        mine = self._released()
        return rank(mine) if mine is not None else (self.learner.version,)

    def _released(self) -> Release | None:
        """The release with my version's digest, if there is one."""
        return self.host.releases.named(self.learner.version, self.weights)

    def is_ahead(self) -> bool:
        """A release of a later version is here, or is worth waiting for."""
        return self.next.better((self.learner.version + 1,))

    def _differs(self) -> bool:
        """A release that ranks above my version is here, or is worth waiting for."""
        return self.next.better(self.above())

    def awaited(self) -> Release | None:
        """The release that ranks above my version and is worth waiting for, if there is one."""
        return self.next.awaited(self.above())

    def is_overtaken(self) -> bool:
        """A release of a later version, or a better one of my version, is here or is worth waiting for."""
        return self.is_ahead() or self._differs()

    def is_next_of(self, members: Collection[PeerId]) -> bool:
        """The release ahead is the next version, made by another of `members` from the average that I have,
        so my step makes the same bytes. Without that step my moments would lack one, and my batch, which is
        part of the release, would be trained twice.
        """
        release = self.next.awaited((self.learner.version + 1,))
        if release is None or release.version != self.learner.version + 1 or release.parent != self.weights:
            return False
        others = {*members} - {self.host.ports.me}
        return release.publisher in others and release.learners == len(members)

    def is_settled(self) -> bool:
        """The release of my version has my digest. Only then the heartbeat reports it."""
        mine = self._released() if self._packed is not None else None
        if mine is None or self._differs():
            return False
        self.host.releases.hold(mine)
        self.due, self._first = None, False
        self.host.status.early = self.host.status.early or bool(self._members)
        if self._members and mine.publisher != self.host.ports.me:
            self.host.status.astray = False
        self.host.status.version, self.host.status.weights = mine.version, mine.weights
        self._other_learners.set_releasing(False)
        return True

    def is_expected(self) -> bool:
        """My version is not released yet, and will be as it is if this step is like the one before."""
        return self.host.status.early and not self.is_overtaken()

    # --- publishing -----------------------------------------------------------------------------------------

    def begin(self, snapshot: Snapshot, made_of: Progress, members: Collection[PeerId] = ()) -> None:
        """A new version, made by a round of `members`; none: it was loaded."""
        self._snapshot, self._packed, self._prepared, self.due = snapshot, None, None, None
        self.made_of, self._members = made_of, members
        self._first = bool(members) and self._turn() == 0
        self.host.status.early = self.host.status.early and bool(members)
        self._other_learners.set_releasing(bool(members))
        self._wake()

    def is_publishing(self) -> bool:
        """Whether this learner is about to publish its version, before any other's turn."""
        return self._first

    async def packed(self) -> None:
        """Wait until my version is packed."""
        while self._snapshot is not None:
            await self.host.changed(self.host.config.run.pace.beat)

    async def run(self) -> None:
        """Pack my versions, and publish them when it is my turn, until cancelled."""
        host, beat = self.host, self.host.config.run.pace.beat
        while True:
            self._news.clear()
            if self._snapshot is not None:
                await self._pack(self._snapshot)
            elif self.is_settled() or self.due is None:
                await self._news.wait()
            elif host.steady() >= self.due:
                await self._publish()
            else:
                await host.changed(min(beat, self.due - host.steady()))

    async def _pack(self, snapshot: Snapshot) -> None:
        packed = await self.host.releases.pack(snapshot.packed)
        if self._snapshot is not snapshot:
            return  # another version took its place
        self._snapshot, self._packed = None, packed
        self.host.releases.doubts.votes.packed(packed.version, packed.digest)
        if self._members:
            self.wait_turns(self._turn())
        self.host.move()

    def _turn(self) -> int:
        """Position in the order of publishers of this version; each waits for the ones before. Last come
        learners that released something else before, and those whose steps may differ."""
        votes, learners = self.host.releases.doubts.votes, self._other_learners
        deceived = votes.got_another_mean(self.learner.version)
        order = publishers([(learners.incarnation(peer), peer) for peer in self._members])

        def last(peer: PeerId) -> bool:
            return votes.is_doubted(peer) or peer in deceived or learners.is_astray(peer)

        return sorted(map(PeerId, order), key=last).index(self.host.ports.me)

    def turn_again(self) -> None:
        """The order of publishers has changed."""
        if self._packed is not None and self.due is not None:
            self.wait_turns(self._turn())

    def wait_turns(self, turns: int = 1) -> None:
        """Wait `turns` time-outs before publishing, unless a release of this version arrives by then."""
        self.due = self.host.steady() + turns * self.host.config.run.release.timeout
        self._wake()

    def _wake(self) -> None:
        """`run` has something to do, wherever it waits."""
        self._news.set()
        self.host.move()

    async def _publish(self) -> None:
        """Announce my version, unless there is a better release or another one is about to be announced."""
        # the next try, if neither this one succeeds nor a better release comes
        self.wait_turns()
        packed = self._packed
        assert packed is not None
        waits = self.is_overtaken() or self._is_awaited()
        if not waits and (release := await self._prepare(packed)) is not None:
            await self.host.releases.announce(release)
        if self._packed is packed:
            self._first = False
        self.host.move()

    def _is_awaited(self) -> bool:
        """A heartbeat names another release of this version, whose announcement is on its way."""
        unheard = self._other_learners.with_unheard_release(self.learner.version)
        return bool(self._other_learners.turns.fresh(unheard))

    async def _prepare(self, packed: Weights) -> Release | None:
        """Make the release of this version. None when it is obsolete: another release arrived meanwhile."""
        if self._prepared is None:
            made_of = self.made_of
            prepared = await self.host.releases.prepare(
                packed, parent=made_of.parent, learners=made_of.learners, groups=made_of.groups
            )
            if self._packed is not packed:
                return None
            self._prepared = prepared
        return self._prepared if self._released() is None and not self.is_overtaken() else None
