"""Publishes a learner's own version as a release, and compares it with the releases of others.

    a step or a load -> prepare: bytes held, Release not yet signed
                        publish: announced           is_settled: it is the release of its version
                        is_overtaken: a better release is here or worth waiting for

Invariant: the released weights are the truth. A learner reports a version in its heartbeat, and learns on it,
only once that version is released with its own digest. Not handled here: how a better release is taken
(peers.roles.catch_up), how releases travel (peers.runtime.releases).
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

from peers.roles.next_release import NextRelease
from peers.roles.other_learners import OtherLearners
from peers.runtime.host import Host
from swarm import events
from swarm.core.releases import publishers, rank
from swarm.core.rounds import Cause
from swarm.learn.base_learner import BaseLearner
from swarm.net.ports import NetError
from swarm.types import Digest, PeerId, Release


class OwnRelease:
    def __init__(
        self, host: Host, learner: BaseLearner, other_learners: OtherLearners, idle: Callable[[], bool]
    ) -> None:
        """`idle()` is whether the round has nothing to do."""
        self.host, self.learner, self._other_learners = host, learner, other_learners
        self.next = NextRelease(host, self.above, idle)
        self.weights = Digest("")
        """Digest of my version's weights, as they would be released."""
        self.parent = Digest("")
        """Digest of the weights that my version was made from."""
        self.prepared: Release | None = None
        """My version as the release that I would publish."""
        self.due: float | None = None
        """When it is my turn to publish my version; None while it is not."""

    # --- mine and others' -----------------------------------------------------------------------------------

    def above(self) -> tuple[Any, ...]:
        """The rank that a better release must exceed: that of my version once it is released; until then
        every release of my version is better."""
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
        """The release of my version has my digest. Only then the heartbeat reports it and I learn on it."""
        mine = self._released()
        if mine is None or self._differs():
            return False
        self.host.releases.hold(mine)
        self.due = None
        self.host.status.version, self.host.status.weights = mine.version, mine.weights
        return True

    # --- publishing -----------------------------------------------------------------------------------------

    async def prepare(self, members: int, groups: int = 0) -> None:
        """Hold my weights for others to fetch, as the release that I would announce."""
        self.prepared = await self.host.releases.prepare(
            self.learner.weights,
            parent=self.parent,
            learners=members,
            groups=groups,
        )
        self.weights = self.prepared.weights

    def take_turn(self, members: Collection[PeerId]) -> int:
        """My position in the order of publishers of our round's version; each waits for the ones before."""
        order = publishers([(self._other_learners.incarnation(peer), peer) for peer in members])
        turn = order.index(self.host.ports.me)
        if turn > 0:
            self.wait_turns(turn)
        return turn

    def wait_turns(self, turns: int = 1) -> None:
        """Make it my turn after `turns` time-outs, unless a release of my version is heard by then."""
        self.due = self.host.now() + turns * self.host.config.run.release.timeout

    async def publish(self) -> Cause:
        """Announce my version, unless there is a better release or another one is about to be announced."""
        assert self.prepared is not None
        # the next try, if neither this one succeeds nor a better release comes
        self.wait_turns()
        if self.is_overtaken():
            return Cause.AHEAD_SEEN
        # a heartbeat names another release, whose announcement is on its way
        if self._other_learners.turns.fresh(self._other_learners.with_unheard_release(self.learner.version)):
            return Cause.TIMEOUT
        try:
            await self.host.releases.announce(self.prepared)
        except NetError as error:
            text = f"release {self.prepared.version} is not announced yet: {error}"
            self.host.emit(events.Noted, level="warning", text=text)
            return Cause.TIMEOUT
        self.due = None
        return Cause.PUBLISHED
