"""How the learners deny a release that one of them made alone while most make rounds: by votes.

    a learner that was in the rounds of most receives a release   (swarm.core.agreement.round_record)
        made without it, and most are not at it yet -> it does not follow it, and its heartbeat denies it
    half of the learners or more deny it            -> none follows it, its publisher is named
    more than half of the learners are at it, or
    fewer than half are witnesses                   -> all denials end

    a member's release differs from its round's result   (peers.learner.agreement.other_bytes)
        and fewer than half of the learners are at it -> the same
    most of the witnesses deny it                     -> the same, but a publisher that announced another mean
                                                         is not named   (swarm.core.gradient_checks.same_mean)

So a learner that wants to step alone, or with a few, waits until fewer than half of the others are witnesses
of their version: their heartbeats say so, and those whose round failed announce at once that they are none.
Votes count from CROWD learners on, of those with recent heartbeats. Invariant: a vote is in a heartbeat that
its learner signed. Not handled here: which releases lead on from known ones (peers.runtime.releases.doubts).
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict, deque
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from enum import StrEnum
from itertools import islice
from typing import NamedTuple

from peers.runtime.kernel import Kernel
from peers.runtime.releases.lines import ReleaseLines
from swarm.core.agreement.lineage import Point
from swarm.core.agreement.releases import PUBLISHERS
from swarm.core.agreement.round_record import Witness
from swarm.core.gradient_checks.majority import CROWD
from swarm.core.gradient_checks.same_mean import are_two, got_another
from swarm.core.roster import ELSEWHERE, NO_PEER
from swarm.limits import remember
from swarm.protocol import RESTING, Role
from swarm.types import Beat, Digest, PeerId, Release

HEARD = 2.5
"""In intervals of its heartbeats: a learner that was silent for longer lost two of them, or is gone."""

MARK = 8
"""Bytes by which a heartbeat names a release."""

DENIED = 4
"""Releases that a heartbeat denies, the newest ones; denials of older ones have been received."""

RECENT = 16
"""Announcements that votes may be about."""

QUIET, DOUBLED = 30.0, 7
"""Seconds for which a learner whose release differed from its round's result is not trusted as a member of
one; twice as long each time, so many times. A release that equals the round's result is accepted all the
same."""


class Why(StrEnum):
    """Why a release is denied; a vote is for one of these."""

    BESIDE = ""
    """It was made beside the rounds."""
    OTHER_BYTES = " other bytes"
    """It is not the result of its round."""
    OTHER_MEAN = " other mean"
    """The same, by a member that announced another mean."""


class Against(NamedTuple):
    """The objections of enough learners to a release."""

    reason: str
    names: bool
    """Its publisher, for a lie."""


class Doubt(NamedTuple):
    """Of a member that released something else than its round made."""

    times: int
    until: float
    why: Why


def mark(release: Release, why: Why = Why.BESIDE) -> bytes:
    """Identifies a denied announcement; the same weights may be truthfully announced by others."""
    named = f"{release.publisher} {release.version} {release.weights} {release.groups}{why}"
    return hashlib.sha256(named.encode()).digest()[:MARK]


class ReleaseVotes:
    def __init__(
        self, kernel: Kernel, lines: ReleaseLines, is_disbelieved: Callable[[Release], bool]
    ) -> None:
        """`is_disbelieved`: whether this peer follows that release no more."""
        self._kernel, self._lines, self._is_disbelieved = kernel, lines, is_disbelieved
        self.witness = Witness(kernel.config.run.averaging.match)
        self._recent = deque[Release](maxlen=RECENT)
        self._last_denied = b""
        """What my last heartbeat denied."""
        self._meets, self._compares = False, False
        self._made: Point = -1, Digest("")
        """My version, released or not, once it is packed."""
        self._false: OrderedDict[PeerId, Doubt] = OrderedDict()
        """Publishers whose releases were not the result of our round."""

    # --- of a learner ---------------------------------------------------------------------------------------

    def meet(self) -> None:
        """A round begins: its members are not known yet."""
        self._meets = True

    def met(self, members: Collection[PeerId], patient: bool) -> None:
        """I was in a round of my version with these members; or in none, and `patient`: I try again."""
        self._meets = False
        if self.are_most(members) and not self._has_next():
            self.witness.averaged(self._mine[0], members, self._kernel.now())
            if self._learners().keys() - members:
                self._kernel.beat_now()
        elif members or not patient:
            self.give_up()
        self._announce_denial()

    @property
    def _mine(self) -> Point:
        """My released version."""
        return self._kernel.status.version, Digest(self._kernel.status.weights)

    def _has_next(self) -> bool:
        """Was a release announced that goes on from my version, and that I do not deny?"""
        next_ones = (one for one in self._recent if (one.version - 1, one.parent) == self._mine)
        return any(not (self._is_disbelieved(one) or self.denies(one)) for one in next_ones)

    def give_up(self) -> None:
        """No round of most learners came about: whoever's turn it is may step."""
        stood = self.stands()
        self.witness.gave_up(self._mine[0])
        if stood:
            self._kernel.beat_now()

    def stands(self) -> bool:
        """Whether this learner is a witness of its version. Loading a release moves it there; comparing one
        does not."""
        here = self._compares or self._kernel.status.phase not in ELSEWHERE
        return here and self.witness.stands(self._mine[0], self._kernel.now())

    @contextmanager
    def comparing(self) -> Iterator[None]:
        """I compare a release of my round with what I made of it."""
        self._compares = True
        try:
            yield
        finally:
            self._compares = False

    def may_lead(self, members: Collection[PeerId]) -> bool:
        """Would these members, me among them, be followed to a next version?"""
        learners = self._learners()
        return len(learners) < CROWD or 2 * len(_witnesses(learners).difference(members)) < len(learners)

    def are_most(self, members: Collection[PeerId]) -> bool:
        """Whether these could make a round whose members deny other learners' releases."""
        return 2 * len(members) > len(self._learners()) >= CROWD

    def denied(self) -> bytes | None:
        """Marks of the releases that I deny, for a heartbeat; None when I am no witness."""
        stands = self.stands()
        known = ((one, self._why(one)) for one in (reversed(self._recent) if stands else ()))
        marks = (mark(one, why) for one, why in known if (why or not self._meets) and self.denies(one))
        self._last_denied = b"".join(islice(marks, DENIED))
        return self._last_denied if stands else None

    def denies(self, release: Release) -> bool:
        """Do I know it to be one learner's own work, can enough of us deny it, and are most not at it?"""
        kernel = self._kernel
        if kernel.who.role is not Role.LEARNER or not self.stands():
            return False  # cheap, since it is asked about each candidate at each look
        at, mine = (release.version, release.weights), self._mine
        if release.publisher == kernel.ports.me or at in (mine, self._made) or at[0] < mine[0]:
            return False
        heard = kernel.roster.since(release.publisher)
        since, other = kernel.now() if heard is None else heard, bool(self._why(release))
        members = self.witness.members(release.version)
        of_round = release.learners == len(members) and not other
        publisher = release.publisher if of_round else NO_PEER
        if not self.witness.denies(mine[0], release.version, publisher, self._parts(release), since):
            return False
        learners = self._learners(release.publisher)
        there = {peer for peer, beat in learners.items() if beat and (beat.version, beat.weights) == at}
        few = 2 * len(there | {release.publisher}) + other <= len(learners)
        able = {*_witnesses(learners), kernel.ports.me}
        if release.publisher in members:
            able |= self._in_step(members, learners)
        able -= {release.publisher}
        voters = len(able) + 1 if other else len(learners) - 1
        return few and len(learners) >= CROWD and 2 * len(able) > voters

    def _in_step(self, members: Collection[PeerId], learners: Mapping[PeerId, Beat | None]) -> set[PeerId]:
        """The silent members of the last round: they are witnesses as this learner is."""
        roster, now, ended = self._kernel.roster, self._kernel.now(), self.witness.ended()
        heard = (peer for peer, beat in learners.items() if beat)
        return {peer for peer in heard if peer in members and now - roster.silent(peer, now) < ended}

    def _why(self, release: Release) -> Why:
        """Why this learner denies it, if it does: other weights than its round's, by a member that it does
        not trust, while its own steps equal the others'."""
        version, weights = self._made
        is_member = release.publisher in self.witness.members(version)
        differs = release.version == version and release.weights != weights
        believes = self._kernel.status.astray or not self.is_doubted(release.publisher)
        doubted = differs and is_member and not believes
        return self._false[release.publisher].why if doubted else Why.BESIDE

    def is_doubted(self, publisher: PeerId) -> bool:
        """Did it release something else than our round made, not long ago?"""
        return publisher in self._false and self._kernel.now() < self._false[publisher].until

    def got_another_mean(self, version: int) -> set[PeerId]:
        """Members of the round that made this version, including this learner, that announced another mean
        than most."""
        members, roster = self.witness.members(version), self._kernel.roster
        beats = {peer: roster.beat(peer) for peer in members if peer != self._kernel.ports.me}
        marks = {peer: beat.mean for peer, beat in beats.items() if beat is not None}
        return got_another({**marks, self._kernel.ports.me: self._kernel.status.mean}, len(members))

    def packed(self, version: int, weights: Digest) -> None:
        """My version has these weights."""
        self._made = version, weights
        self._announce_denial()

    def found_false(self, release: Release) -> None:
        """A member of this round released something other than its result."""
        publisher = release.publisher
        beat = self._kernel.roster.beat(publisher)
        differ = beat is not None and are_two(beat.mean, self._kernel.status.mean)
        before = self._false[publisher].times if publisher in self._false else 0
        until = self._kernel.now() + QUIET * 2.0 ** min(before, DOUBLED)
        doubt = Doubt(before + 1, until, Why.OTHER_MEAN if differ else Why.OTHER_BYTES)
        remember(self._false, publisher, doubt, PUBLISHERS)
        self._announce_denial()

    def _parts(self, release: Release) -> int | None:
        """The last version that its line shares with mine; None where that is not known."""
        if (release.version - 1, release.parent) == self._mine:
            return self._mine[0]
        fork = self._lines.lineage.meet(self._mine, (release.version, release.weights))
        return fork.since if fork is not None else None

    def _announce_denial(self) -> None:
        """Announce a new denial at once."""
        before = self._last_denied
        if self.denied() and self._last_denied != before:
            self._kernel.beat_now()

    # --- of all learners
    # -------------------------------------------------------------------------------------

    def receive(self, release: Release) -> Against | None:
        """Note a new release. Returns the learners that deny it and why, where these are enough; else
        None."""
        self._recent.append(release)
        self._announce_denial()
        return self._against(release)

    def refused(self, beat: Beat) -> Iterator[tuple[Release, Against]]:
        """Of the releases that a heartbeat denies, those that enough learners deny by now, and why."""
        marks = {*_marks(beat.denied)}
        recent = [*self._recent] if marks else []
        for release in [one for one in recent if marks & {mark(one, why) for why in Why}]:
            if against := self._against(release):
                yield release, against

    def _against(self, release: Release) -> Against | None:
        learners = self._learners(release.publisher)
        beside, other, deceived = (self._votes(mark(release, why), release, learners) for why in Why)
        me = {self._kernel.ports.me} if self.stands() else set[PeerId]()
        voters = len(_witnesses(learners) | {release.publisher} | me)
        if len(learners) >= CROWD and 2 * len(beside) >= len(learners):
            return Against(f"{len(beside)} learners deny it: they make rounds, and it comes of none", True)
        if len(learners) >= CROWD and 2 * len(other | deceived) > voters:
            reason = f"{len(other | deceived)} learners deny it: it is not what their round made"
            if len(other) > len(deceived):
                return Against(reason, True)
            return Against(f"{reason}, and its publisher says that it got another mean", False)
        return None

    def _votes(self, name: bytes, release: Release, learners: Mapping[PeerId, Beat | None]) -> set[PeerId]:
        """The learners that deny a release by this mark."""
        votes = {peer for peer, beat in learners.items() if beat and name in _marks(beat.denied)}
        mine = {self._kernel.ports.me} if name in _marks(self._last_denied) else set[PeerId]()
        return (votes - {release.publisher}) | mine

    def _learners(self, publisher: PeerId | None = None) -> dict[PeerId, Beat | None]:
        """The learners that count, by their heartbeats: those with recent ones that are at a version and not
        paused, this one, and a `publisher`. A syncing one counts: else two of four would be most learners
        while a third one syncs."""
        kernel, found = self._kernel, dict[PeerId, Beat | None]()
        longest = HEARD * kernel.config.run.pace.beat
        for peer in kernel.roster.learners():
            beat, silent = kernel.roster.beat(peer), kernel.roster.silent(peer, kernel.now())
            if beat and silent <= longest and beat.version >= 0 and beat.phase not in RESTING:
                found[peer] = beat
        if kernel.who.role is Role.LEARNER and kernel.status.version >= 0:
            found[kernel.ports.me] = None
        if publisher is not None:
            found.setdefault(publisher, None)
        return found


def _witnesses(learners: Mapping[PeerId, Beat | None]) -> set[PeerId]:
    """The other learners that announce that they are witnesses of their version."""
    return {peer for peer, beat in learners.items() if beat and beat.denied is not None}


def _marks(denied: bytes | None) -> list[bytes]:
    return [denied[at : at + MARK] for at in range(0, len(denied), MARK)] if denied else []
