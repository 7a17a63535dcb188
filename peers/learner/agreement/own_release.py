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
import math
from collections.abc import Callable, Collection
from typing import Any, NamedTuple

from peers.learner.agreement.next_release import NextRelease
from peers.learner.agreement.other_bytes import OtherBytes
from peers.learner.agreement.other_learners import OtherLearners
from peers.learner.checkpoints import Progress
from peers.runtime.host import Host
from swarm.core.agreement.electorate import favourite
from swarm.core.agreement.lineage import Point
from swarm.core.agreement.releases import rank
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
        self._packed_at = -math.inf
        self._prepared: Release | None = None
        """My version as the release that I would publish."""
        self._first = False
        """This learner is first in the order of publishers of its version, and has not tried yet."""
        self._tried = False
        """I tried to publish my version."""
        self._other_bytes = OtherBytes(host)
        self._compared: float | None = None
        """When my version was compared with those of the other members of its round."""
        self._slow = set[PeerId]()
        """Learners that let their turn to publish pass, last."""
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
        compared. Where this version was announced and does not count, every one is better that counts and is
        not of its own line."""
        if self._packed is None:
            return (self.learner.version + 1,)
        if self.host.releases.agreement.is_refused(self.learner.version, self.weights):
            return self.host.releases.agreement.above((self.learner.version, self.weights))
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
        return release.publisher in {*members} - {self.host.ports.me}

    def is_settled(self) -> bool:
        """The release of my version has my digest. Only then the heartbeat reports it."""
        mine = self._released() if self._packed is not None else None
        if mine is None or self._differs():
            return False
        self.host.releases.hold(mine)
        self._note_turns(mine.publisher)
        self.due, self._first = None, False
        self.host.status.early = self.host.status.early or bool(self._members)
        self.host.status.version, self.host.status.weights = mine.version, mine.weights
        self._other_learners.set_releasing(False)
        return True

    def _note_turns(self, publisher: PeerId) -> None:
        """Another member than the first published my version."""
        if self.due is not None and publisher in (order := self._order()):
            self._slow -= {publisher}
            self._slow |= {*order[: order.index(publisher)]}

    def is_expected(self) -> bool:
        """My version is not released yet, and will be as it is if this step is like the one before."""
        return self.host.status.early and not self.is_overtaken()

    # --- publishing -----------------------------------------------------------------------------------------

    def begin(self, snapshot: Snapshot, made_of: Progress, members: Collection[PeerId] = ()) -> None:
        """A new version, made by a round of `members`; none: it was loaded."""
        self._snapshot, self._packed, self._prepared, self.due = snapshot, None, None, None
        self.made_of, self._members = made_of, members
        self._compared, self._tried = None, False
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
            elif self._makes_other_bytes():
                await self._compare()
            elif (left := self._left(self.due)) <= 0:
                await self._publish()
            else:
                await host.changed(min(beat, left))

    def _left(self, due: float) -> float:
        """Seconds until it is my turn; none where most voted for my version, and all before me for others."""
        votes = self.host.releases.agreement.of(self.learner.version, self.made_of.parent)
        order = (peer for peer in self._order() if votes.get(peer, self.weights) == self.weights)
        is_first = not self._tried and next(order, "") == self.host.ports.me and self._is_agreed()
        return 0.0 if is_first else due - self.host.steady()

    def _makes_other_bytes(self) -> bool:
        """Did the members of my round make different bytes, and is it time to vote for those of one?"""
        timeout, compared = self.host.config.run.release.timeout, self._compared
        if compared is not None and self.host.steady() - compared < timeout:
            return False
        return self._other_bytes.are_many(self.learner.version, self.made_of.parent, self._members)

    async def _compare(self) -> None:
        """Vote for the bytes of an older member, where they are near mine, or else of the oldest."""
        version, parent, packed = self.learner.version, self.made_of.parent, self._packed
        assert packed is not None
        if self._compared is None:
            self._compared = self.host.steady()
            await self._other_bytes.vote(version, parent, self._members, packed.blocks)
        else:
            self._compared = math.inf
            self._other_bytes.give_in(version, parent, self._members)

    async def _pack(self, snapshot: Snapshot) -> None:
        packed = await self.host.releases.pack(snapshot.packed)
        if self._snapshot is not snapshot:
            return  # another version took its place
        self._snapshot, self._packed, self._packed_at = None, packed, self.host.steady()
        if self._members or self._released() is None:  # else it was loaded
            self.host.releases.agreement.vote(packed.version, self.made_of.parent, packed.digest)
        if self._members:
            self.wait_turns(self._turn())
        self.host.move()

    def _turn(self) -> int:
        """Position in the order of publishers of this version; each waits for the ones before."""
        return self._order().index(self.host.ports.me)

    def _order(self) -> list[PeerId]:
        """The oldest first; last come those that let their turn pass."""
        return sorted(self.host.releases.agreement.order(self._members), key=self._slow.__contains__)

    def wait_turns(self, turns: int = 1) -> None:
        """Wait `turns` time-outs before publishing, unless a release of this version arrives by then."""
        self.due = self.host.steady() + turns * self.host.config.run.release.timeout
        self._wake()

    def _is_agreed(self) -> bool:
        """Did most learners vote for my version? Votes for a step alone were waited for before it."""
        host, of = self.host, self.made_of.parent
        in_time = host.steady() < self._packed_at + host.config.run.release.timeout
        waits = in_time and len(self._members) > 1
        choices = self.weights, host.ports.me
        return host.releases.agreement.agrees(self.learner.version, of, *choices, waits=waits)

    def _wake(self) -> None:
        """`run` has something to do, wherever it waits."""
        self._news.set()
        self.host.move()

    async def _publish(self) -> None:
        """Announce my version once most learners agree to it, unless a better release comes."""
        host, packed, due = self.host, self._packed, self.due
        assert packed is not None and due is not None
        if self._prepared is None and not await self._prepare(packed):
            return
        assert self._prepared is not None
        if self._is_agreed():
            self._tried = True
            self.wait_turns()  # the next try, if neither this one succeeds nor a better release comes
            if self._released() is None and not self.is_overtaken():
                await host.releases.announce(self._prepared)
        else:
            await host.changed(host.config.run.pace.beat)
            if host.steady() - due < host.config.run.release.timeout:
                return
            self._vote_again(packed)
        if self._packed is packed:
            self._first = False
        host.move()

    def _vote_again(self, packed: Weights) -> None:
        """Nothing was decided in a time-out. I voted for mine: go where another learner is, or else where
        most, or the oldest, would go. I voted for another's: it did not come, so vote for mine, and compare
        it with those of the rest."""
        agreement, version, parent = self.host.releases.agreement, packed.version, self.made_of.parent
        votes = agreement.of(version, parent)
        choice = votes.get(self.host.ports.me)
        if choice == packed.digest:
            if not agreement.vote_ahead():
                agreement.vote(version, parent, favourite(votes, agreement.order(votes)))
        else:
            if choice is not None:
                self._other_bytes.pass_over(version, Digest(choice))
            agreement.vote(version, parent, packed.digest)
            self._compared = None
        self.wait_turns()

    async def _prepare(self, packed: Weights) -> bool:
        """Make the release of this version. False when it is obsolete: I have another version meanwhile."""
        made_of = self.made_of
        prepared = await self.host.releases.prepare(
            packed,
            parent=made_of.parent,
            learners=made_of.learners,
            groups=made_of.groups,
        )
        if self._packed is not packed:
            return False
        self._prepared = prepared
        return True
