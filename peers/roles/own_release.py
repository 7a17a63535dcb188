"""A learner's own version as a release: whether it counts, whether a better one exists, whose turn it is.

    a step or a load -> prepare: bytes held, Release signed by nobody yet
                        publish: announced           is_settled: it is the release of its version
                        is_overtaken: a better release is here or worth waiting for

Invariant: the released weights are the truth. A learner says that it has a version, and learns on it, once
that version is released with its own digest. Not handled here: how a better release is taken
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
from swarm.learn.fsdp.learner import ShardedLearner
from swarm.learn.learner import Learner
from swarm.net.ports import NetError
from swarm.types import Digest, PeerId, Release


class OwnRelease:
    def __init__(
        self, host: Host, learner: Learner | ShardedLearner, company: OtherLearners, idle: Callable[[], bool]
    ) -> None:
        """`idle` says that the round has nothing to do."""
        self.host, self.learner, self._company = host, learner, company
        self.next = NextRelease(host, self.above, idle)
        self.weights = Digest("")
        """Of my version, as it would be released."""
        self.parent = Digest("")
        """Weights of the version that mine was made from."""
        self.prepared: Release | None = None
        """The release of my version as I would publish it."""
        self.due: float | None = None
        """When it is my turn to publish it."""

    # --- mine and others' -----------------------------------------------------------------------------------

    def above(self) -> tuple[Any, ...]:
        """The rank of my version as it is released; while it is not, every release of it ranks above."""
        mine = self._released()
        return rank(mine) if mine is not None else (self.learner.version,)

    def _released(self) -> Release | None:
        return self.host.releases.named(self.learner.version, self.weights)

    def is_ahead(self) -> bool:
        """A release of a later version is here, or worth waiting for."""
        return self.next.better((self.learner.version + 1,))

    def _differs(self) -> bool:
        return self.next.better(self.above())

    def is_overtaken(self) -> bool:
        """A release ahead of mine, or a better one of my version, is here or worth waiting for."""
        return self.is_ahead() or self._differs()

    def is_next_of(self, members: Collection[PeerId]) -> bool:
        """The release ahead is the next one, by another of `members`, whose average I have: my step makes the
        same bytes. Without it my moments would lack a step, and the batch, which the release has in it, would
        be trained twice.
        """
        release = self.next.awaited((self.learner.version + 1,))
        if release is None or release.version != self.learner.version + 1 or release.parent != self.weights:
            return False
        others = {*members} - {self.host.ports.me}
        return release.publisher in others and release.learners == len(members)

    def is_settled(self) -> bool:
        """My version is released, and mine is the release: only then it is what I say I have, and what I
        learn on."""
        mine = self._released()
        if mine is None or self._differs():
            return False
        self.host.releases.hold(mine)
        self.due = None
        self.host.status.version, self.host.status.weights = mine.version, mine.weights
        return True

    # --- publishing -----------------------------------------------------------------------------------------

    async def prepare(self, members: int, groups: int = 0) -> None:
        """Hold my weights for others, as the release that I would announce."""
        self.prepared = await self.host.releases.prepare(
            self.learner.weights,
            parent=self.parent,
            learners=members,
            groups=groups,
        )
        self.weights = self.prepared.weights

    def take_turn(self, members: Collection[PeerId]) -> int:
        """My place among those who publish the version of our round; each waits for the ones before."""
        order = publishers([(self._company.incarnation(peer), peer) for peer in members])
        turn = order.index(self.host.ports.me)
        if turn > 0:
            self.wait_turns(turn)
        return turn

    def wait_turns(self, turns: int = 1) -> None:
        """It is my turn unless a release of my version is heard in so many time-outs."""
        self.due = self.host.now() + turns * self.host.config.run.release.timeout

    async def publish(self) -> Cause:
        assert self.prepared is not None
        # unless it is announced now, or another one can be had
        self.wait_turns()
        if self.is_overtaken():
            return Cause.AHEAD_SEEN
        # another one is released, and I shall hear of it
        if self._company.turns.fresh(self._company.coming(self.learner.version)):
            return Cause.TIMEOUT
        try:
            await self.host.releases.announce(self.prepared)
        except NetError as error:
            text = f"release {self.prepared.version} is not announced yet: {error}"
            self.host.emit(events.Noted, level="warning", text=text)
            return Cause.TIMEOUT
        self.due = None
        return Cause.PUBLISHED
