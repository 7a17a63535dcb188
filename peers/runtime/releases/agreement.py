"""Which releases a peer follows: those that most learners voted for.

    heartbeats of learners -> electors, and their votes     (swarm.core.agreement.electorate)
    a release              -> its ballots, the votes heard, the learners that are at it or beyond
                                  most electors -> it counts     fewer -> it waits for more

A learner has one vote for each version, and its heartbeats carry it:

    its step is packed             -> for these weights
    no round of its succeeds       -> for the learner that steps alone: a yield   (peers.learner.agreement)
    others voted, it has no step   -> for their favourite
    a time-out without a decision  -> anew, for the favourite
    its own step had no majority   -> for the best release that another learner is at

A vote binds its voter for one time-out, in which it steps to nothing else: for two releases of one version to
count a voter must lie, or a message must take longer. Votes are signed, and a release carries its own: a peer
that was not there counts them. Not handled here: which voter publishes (peers.learner.agreement.own_release),
which of two releases that count is better (swarm.core.agreement.releases).
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Collection
from statistics import median_high
from typing import Any

from peers.runtime.kernel import Kernel
from peers.runtime.releases.lines import ReleaseLines
from swarm import events
from swarm.core.agreement.electorate import PAIR, Electorate, are_most, favourite
from swarm.core.agreement.lineage import Point, ancestry, parent_of
from swarm.core.agreement.releases import Releases, rank
from swarm.core.roster import ELSEWHERE
from swarm.limits import BALLOTS, remember
from swarm.protocol import RESTING, Phase, Role
from swarm.types import Ballot, Beat, Digest, PeerId, Release, Vote

REMEMBERED = 64
"""Versions whose releases are remembered, beside those of the run's window."""

ABSENT = (*RESTING, Phase.STARTING, Phase.LEAVING, Phase.STOPPED)
"""Phases of learners that do not vote."""

BUSY = (Phase.MATCHING, Phase.STEPPING, Phase.RELEASING, Phase.EARLY)
"""Phases of a learner that has a gradient or a step of its own."""

SLOW = 0.5
"""A learner of less than this part of the median speed votes while it computes: the others go on alone."""

NEAR = 2
"""Versions by which a learner may be behind, by its last heartbeat, and have a step of the next one."""

BEYOND = 256
"""Versions by which a learner's own may be beyond the newest one before it that counts."""


class Agreement:
    """One peer's view of the learners' votes, and its own where it is a learner."""

    def __init__(self, kernel: Kernel, lines: ReleaseLines, took: Callable[[Release], None]) -> None:
        """`took` is called with each release once it counts."""
        run = kernel.config.run
        self._kernel, self._lines, self._took = kernel, lines, took
        votes = kernel.who.role is Role.LEARNER
        self._electorate = Electorate(run.pace.patience, run.window.seconds, votes)
        self._votes: dict[PeerId, Vote] = {}
        """The last vote of each learner, mine among them."""
        self._at: dict[PeerId, Point] = {}
        """Where each of the others is by its heartbeat."""
        self.meets = True
        """Set by a learner: it expects another one in the round of its version."""
        self._voted = -math.inf
        """When I voted last."""
        self._from: Point = -1, Digest("")
        """The version that the next one is made from, as far as this peer knows; and since when."""
        self._since = math.inf
        self._ballots: OrderedDict[tuple[int, Digest, str], set[PeerId]] = OrderedDict()
        """Version, the one before, and choice -> voters, by ballots whose signatures were verified."""
        self._waiting: OrderedDict[Release, float] = OrderedDict()
        """Releases that do not count, and since when; infinity once that was reported, and for those that
        were old when they came."""
        self._unfollowed: OrderedDict[PeerId, None] = OrderedDict()
        """Publishers whose last release does not count, and that was reported."""
        keep = max(REMEMBERED, run.window.versions + 1)
        self.candidates = Releases(keep, run.pace.patience, self.counts)
        """Announced releases, and the state of their bytes."""

    # --- which releases count -------------------------------------------------------------------------------

    def electors(self) -> Collection[PeerId]:
        """The learners that count."""
        kernel, me, status = self._kernel, self._kernel.ports.me, self._kernel.status
        has_version = status.version >= 0 or self.mine is not None
        if kernel.who.role is Role.LEARNER and has_version and status.phase not in ABSENT:
            self._electorate.heard(me, kernel.steady())
        else:
            self._electorate.left(me)
        known = self._electorate.electors(kernel.steady())
        return [peer for peer in known if kernel.trust.revoked(peer) is None]

    def counts(self, release: Release) -> bool:
        """Is it followed?"""
        electors = self.electors()
        if release.version == 0 or not electors:
            return True
        return are_most([peer for peer in electors if self._supports(peer, release)], electors)

    def _supports(self, peer: PeerId, release: Release) -> bool:
        vote, version, parent = self._votes.get(peer), release.version, release.parent
        for choice in (release.weights, release.publisher):
            if vote is not None and (vote.version, vote.parent, vote.choice) == (version, parent, choice):
                return True
            if peer in self._ballots.get((version, parent, choice), ()):
                return True
        return self._is_at(peer, release)

    def _is_at(self, peer: PeerId, release: Release) -> bool:
        """Is a learner at this release, or at one that comes from it?"""
        status, end = self._kernel.status, (release.version, release.weights)
        if self._lines.lineage.parent(end) not in (None, parent_of(release.version, release.parent)):
            return False  # the same weights, said to be made from others
        mine = status.version, Digest(status.weights)
        point = mine if peer == self._kernel.ports.me else self._at.get(peer, (-1, Digest("")))
        line, _ = ancestry(point, self._lines.lineage.parent, release.version)
        return line.get(release.version) == release.weights

    def above(self, point: Point) -> tuple[Any, ...]:
        """The rank that a release must exceed to be better than this version: its own, or that of the newest
        version before it that counts. Going back to that one would help nothing."""
        for _ in range(BEYOND):
            known = self.candidates.known(*point)
            if ranks := [rank(one) for one in known if self.counts(one)]:
                return max(ranks)
            if (before := self._lines.lineage.parent(point)) is None:
                break
            point = before
        return ()

    def is_refused(self, version: int, weights: Digest) -> bool:
        """Were these weights announced, and did most learners vote for no announcement of them?"""
        known = self.candidates.known(version, weights)
        return bool(known) and not any(map(self.counts, known))

    # --- news -----------------------------------------------------------------------------------------------

    def receive(self, peer: PeerId, beat: Beat) -> None:
        """Note where a learner is, and its vote."""
        if beat.role is not Role.LEARNER:
            return
        if (beat.version < 0 and beat.vote is None) or beat.phase in ABSENT:
            self._electorate.left(peer)
            self._at.pop(peer, None)
            return
        self._electorate.heard(peer, self._kernel.steady())
        self._at[peer] = beat.version, beat.weights
        if beat.vote is not None:
            self._votes[peer] = beat.vote
        else:  # it has restarted
            self._votes.pop(peer, None)
        self.look()

    def note_ballots(self, release: Release) -> None:
        """Note the votes that a release carries."""
        version, parent, keyring = release.version, release.parent, self._kernel.ports.keyring
        for one in release.ballots:
            choice = release.publisher if one.yields else release.weights
            voters = self._ballots.get((version, parent, choice), set())
            signed = self._signed(version, parent, choice)
            if one.voter not in voters and keyring.verify(one.voter, signed, one.signature):
                remember(self._ballots, (version, parent, choice), voters | {one.voter}, 4 * REMEMBERED)

    def hear(self, release: Release) -> None:
        """Wait for the votes for a new release."""
        is_news = 0 <= self._from[0] < release.version
        remember(self._waiting, release, self._kernel.steady() if is_news else math.inf, 4 * REMEMBERED)
        self.look()

    def look(self) -> None:
        """Something has changed: vote where it is time, report what is not followed."""
        kernel, now = self._kernel, self._kernel.steady()
        if (point := self._newest()) != self._from or self._since == math.inf:
            self._from, self._since = point, now
        for release, since in [*self._waiting.items()]:
            is_old = release.version < self._from[0]
            if self.counts(release):
                del self._waiting[release]
                self._unfollowed.pop(release.publisher, None)
                self._took(release)
                continue
            if since < math.inf and (is_old or now - since > kernel.config.run.release.timeout):
                self._waiting[release] = math.inf
                self._report(release)
            if is_old:
                del self._waiting[release]
        electors = {*self.electors()}
        for peer in self._at.keys() - electors:
            del self._at[peer]
            self._votes.pop(peer, None)
        if kernel.ports.me in electors:
            self._follow()

    def _report(self, release: Release) -> None:
        if release.publisher in self._unfollowed:
            return
        remember(self._unfollowed, release.publisher, None, REMEMBERED)
        electors = self.electors()
        agree = sum(self._supports(peer, release) for peer in electors)
        text = (
            f"version {release.version} of {release.publisher} is not followed: {agree} of {len(electors)}"
            " learners agree to it"
        )
        self._kernel.emit(events.Noted, level="warning", text=text)

    def _newest(self) -> Point:
        """The version that this learner's next step is from; of other peers, and of a learner that is behind
        or loads another, the newest release with most votes."""
        status, best = self._kernel.status, self.candidates.best(self.counts)
        newest = (best.version, best.weights) if best is not None else (-1, Digest(""))
        is_here = self._kernel.who.role is Role.LEARNER and status.phase not in ELSEWHERE
        return (status.version, Digest(status.weights)) if is_here and status.version >= newest[0] else newest

    # --- this learner's vote --------------------------------------------------------------------------------

    @property
    def mine(self) -> Vote | None:
        """My last vote, for my heartbeats."""
        return self._votes.get(self._kernel.ports.me)

    def vote(self, version: int, parent: Digest, choice: str) -> None:
        """For the version that goes on from `parent`: vote for its weights, or for the learner that steps
        alone. A vote for another learner's step, or for a release that is ahead, stays while it binds me."""
        before = self._my_vote(version, parent)
        if not self.bound(version, parent) or (before is not None and not before.yields):
            self._cast(version, parent, choice)

    def _cast(self, version: int, parent: Digest, choice: str) -> None:
        kernel, before = self._kernel, self._my_vote(version, parent)
        if before is not None and before.choice == choice:
            return
        yields = choice in (kernel.ports.me, *self._at)
        signature = kernel.ports.keyring.sign(self._signed(version, parent, choice))
        self._votes[kernel.ports.me] = Vote(
            version=version, parent=parent, choice=choice, yields=yields, signature=signature
        )
        self._voted = kernel.steady()
        kernel.beat_now()

    def _my_vote(self, version: int, parent: Digest) -> Vote | None:
        mine = self.mine
        return mine if mine is not None and (mine.version, mine.parent) == (version, parent) else None

    def _signed(self, version: int, parent: Digest, choice: str) -> bytes:
        """The bytes that a vote's signature is of."""
        return f"vote {self._kernel.who.run} {version} {parent} {choice}".encode()

    def of(self, version: int, parent: Digest) -> dict[PeerId, str]:
        """Elector -> its choice for this version: weights, or an elector."""
        electors = self.electors()
        found = ((peer, self._votes.get(peer)) for peer in electors)
        return {
            peer: vote.choice
            for peer, vote in found
            if vote is not None
            and (vote.version, vote.parent) == (version, parent)
            and (vote.choice in electors or not vote.yields)
        }

    def agrees(self, version: int, parent: Digest, *choices: str, waits: bool) -> bool:
        """Did most electors vote for one of these? Of two both must while this one `waits`, but for one that
        is far behind: it releases nothing of this version."""
        votes, electors, me = self.of(version, parent), self.electors(), self._kernel.ports.me
        some = [peer for peer, choice in votes.items() if choice in choices]
        near = (peer for peer in electors if peer == me or self._at[peer][0] >= version - NEAR)
        waits &= len(electors) <= PAIR and any(peer not in some for peer in near)
        return are_most(some, electors) and not waits

    def bound(self, version: int, parent: Digest) -> bool:
        """Does my vote for another learner's step still bind me?"""
        vote, timeout = self._my_vote(version, parent), self._kernel.config.run.release.timeout
        if self.mine is not None and self.mine.version > version:
            vote = self.mine  # for a release that is ahead
        binds = vote is not None and vote.choice != self._kernel.ports.me
        return binds and self._kernel.steady() - self._voted < timeout

    def vote_ahead(self) -> bool:
        """My own step had no majority in a time-out: vote for the best release that another learner is at.
        False where none is better than my version."""
        status, me = self._kernel.status, self._kernel.ports.me
        named = self.candidates.named(status.version, Digest(status.weights))
        above = rank(named) if named is not None else (status.version + 1,)
        points = {self._at[peer] for peer in self.electors() if peer != me}
        best = self.candidates.best(lambda one: (one.version, one.weights) in points)
        if best is None or rank(best) <= above:
            return False
        self.vote(best.version, best.parent, best.weights)
        return True

    def ballots(self, release: Release) -> tuple[Ballot, ...]:
        """The votes for a release, for it to carry."""
        version, parent, keyring = release.version, release.parent, self._kernel.ports.keyring
        found = list[Ballot]()
        for peer, choice in self.of(version, parent).items():
            vote, yields = self._votes[peer], choice == release.publisher
            signed = self._signed(version, parent, choice)
            if (yields or choice == release.weights) and keyring.verify(peer, signed, vote.signature):
                found.append(Ballot(voter=peer, yields=yields, signature=vote.signature))
        return tuple(found[:BALLOTS])

    def _follow(self) -> None:
        """Vote for the favourite where I have nothing of my own, or where my vote has decided nothing."""
        version, parent = self._from[0] + 1, self._from[1]
        kernel, mine = self._kernel, self._my_vote(version, parent)
        binds = kernel.steady() - self._voted < kernel.config.run.release.timeout
        if mine is None and self._is_at_from() and kernel.status.phase in BUSY:
            return  # it votes soon, for its step or where it finds no round
        is_ahead = self.mine is not None and self.mine.version > version
        if binds and (is_ahead or (mine is not None and not self._are_split(version, parent))):
            return
        votes, yields = self.of(version, parent), mine is not None and mine.yields
        if mine is not None and self.agrees(version, parent, mine.choice, waits=True):
            votes = {peer: one for peer, one in votes.items() if one != mine.choice}  # it does not come
        choice = favourite(votes, self.order(votes))
        several = [*votes.values()].count(choice) > 1
        free = mine is None and choice in self._at and self._is_free()
        if choice not in ("", kernel.ports.me) and (several or yields or free):
            self._cast(version, parent, choice)

    def _is_at_from(self) -> bool:
        """Am I at the version that the next one is made from? A gradient of an earlier one is of no use."""
        return self._kernel.status.version >= self._from[0]

    def _are_split(self, version: int, parent: Digest) -> bool:
        """Did all electors vote for learners that step alone, and does none of these have enough votes? The
        favourite is the same one at all of them: there is nothing to wait for."""
        votes = self.of(version, parent)
        if len(votes) < len(self.electors()) or not all(self._votes[peer].yields for peer in votes):
            return False
        return not any(self.agrees(version, parent, choice, waits=True) for choice in votes.values())

    def order(self, peers: Collection[PeerId]) -> list[PeerId]:
        """The oldest first."""
        roster, me = self._kernel.roster, self._kernel.ports.me

        def age(peer: PeerId) -> tuple[float, PeerId]:
            beat = roster.beat(peer)
            mine = self._kernel.who.incarnation if peer == me else math.inf
            return (beat.incarnation if beat is not None else mine), peer

        return sorted(peers, key=age)

    def _is_free(self) -> bool:
        """Does this learner keep others waiting, with no groups of its own? It follows a single vote for one
        that steps alone. Of two, one that does not expect the other one does so at once."""
        status, match = self._kernel.status, self._kernel.config.run.averaging.match
        if not self.meets and len(self.electors()) <= PAIR:
            return True
        if self._kernel.steady() - self._since < match:
            return False
        if status.phase is Phase.LEARNING:
            return not self._is_at_from() or self._is_slow()
        return not self._is_at_from() or not status.inbox

    def _is_slow(self) -> bool:
        roster, mine = self._kernel.roster, self._kernel.status.speed
        beats = (roster.beat(peer) for peer in self.electors())
        speeds = [beat.speed for beat in beats if beat is not None and beat.speed]
        return bool(speeds) and mine < SLOW * median_high([mine, *speeds])
