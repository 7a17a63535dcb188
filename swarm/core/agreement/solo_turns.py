"""Which learner steps alone when no round succeeds, and which of two rounds steps: one at a time, so that a
version has one release.

    round failed -> how many come before this learner?
        0 --> claim: announce it, wait -- no other does --> step alone
        k --> keep the gradient for k time-outs: a release comes, or the turn

Before it come learners that step already, then older ones (as `publishers` orders them) that have a gradient
of this version. A learner that gathers or still learns is not awaited: it finds the release when it is done.
Others are known by their last heartbeats alone; so a claim is announced before it counts, unless no learner
could contest it. A heartbeat may also overtake the release that it announces: a learner whose release is on
its way is awaited like one that steps, but once, since the release may never come.

Learners that do not wait for each other (swarm.core.agreement.missed_rounds) may be in two rounds of one
version. A round that leaves out enough learners for another one is announced as well, and the one with the
oldest learner goes first. Not handled here: parts of a swarm without contact, whose releases are settled by
their rank.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping

from swarm.core.agreement.releases import publishers
from swarm.protocol import Phase
from swarm.types import Beat, PeerId

GOSSIP_SECONDS = 1.0
"""Seconds in which a heartbeat reaches all learners: gossip takes a few hops, each with a link's delay."""

STEPPED = (Phase.RELEASING, Phase.EARLY)
"""Phases of a learner whose step is to be released."""

STEPS = (Phase.STEPPING, *STEPPED)
"""Phases of a learner that is about to make the release."""

WORKS = (Phase.LEARNING, Phase.MATCHING, *STEPS)
"""Phases of a learner that has closed a batch."""

Beats = Mapping[PeerId, Beat]
"""Heartbeats of the other learners at my version."""


class SoloTurns:
    """The turns of one learner, for the gradient that it holds now."""

    def __init__(self, me: tuple[int, PeerId], timeout: float) -> None:
        """`me`: incarnation and id. `timeout`: seconds of one learner's turn."""
        self._me, self._timeout = me, timeout
        self.forget()

    def forget(self) -> None:
        """Reset: the gradient is used or dropped."""
        self._seen: set[PeerId] = set()
        self._waited_for: set[PeerId] = set()
        self._due: float | None = None
        self._tried_again = False

    def begin(self, beats: Beats) -> None:
        """A round with this learner's gradient begins: remember which others have a gradient."""
        self._seen |= {peer for peer, beat in beats.items() if beat.phase in WORKS}

    @property
    def waited(self) -> bool:
        """Whether I waited for my turn, so that there is no round to try."""
        return self._due is not None

    def ask(self, beats: Beats, now: float, coming: Collection[PeerId] = ()) -> bool:
        """Whether it is this learner's turn to step alone, after no round succeeded. `coming`: learners whose
        release of the next version is on its way."""
        before = self.steps(beats) | self.fresh(coming)
        if self._due is None:
            order = publishers([self._me, *((beats[peer].incarnation, peer) for peer in self._ready(beats))])
            before |= {*order[: order.index(self._me[1])]}
        if before:
            self._due = now + len(before) * self._timeout
        return not before

    def contested(self, beats: Beats) -> bool:
        """Whether another learner might claim the turn, or be in a round that still succeeds. A learning one
        may have its gradient by now: two that step within gossip's delay of each other make two releases."""
        return bool(self._ready(beats)) or any(beat.phase is Phase.LEARNING for beat in beats.values())

    def claim(self, beats: Beats, now: float, coming: Collection[PeerId] = ()) -> bool:
        """Whether I step alone, after I announced it and listened. When another learner claims it too, the
        older one goes first."""
        rivals, comes = self.steps(beats), self.fresh(coming)
        if not rivals and not comes:
            return True
        order = publishers([self._me, *((beats[peer].incarnation, peer) for peer in rivals)])
        self._due = now + (1 + order.index(self._me[1])) * self._timeout
        return False

    def second_round(self, beats: Beats, members: Collection[PeerId]) -> bool:
        """Whether learners outside of my successful round may have made one of their own."""
        return len({*self._ready(beats)}.difference(members)) > 1

    def first(self, beats: Beats, members: Collection[PeerId]) -> bool:
        """Whether this learner's round steps before the learners outside of it, after both were announced. A
        learner that stepped already does not go back."""
        if self.stepped(beats).difference(members):
            return False
        stepping = [(beat.incarnation, peer) for peer, beat in beats.items() if beat.phase in STEPS]
        return publishers([self._me, *stepping])[0] in members

    def fresh(self, coming: Collection[PeerId]) -> set[PeerId]:
        """Learners whose release is to be awaited: each once for this gradient."""
        found = {*coming} - self._waited_for
        self._waited_for |= found
        return found

    def ready(self, company: bool, now: float) -> bool:
        """Whether it is time to use a kept gradient. `company`: whether other learners are present."""
        return not company or self._due is None or now >= self._due

    def wait(self, now: float) -> float:
        """Seconds until time alone changes the result of `ready`."""
        return self._due - now if self._due is not None and self._due > now else math.inf

    def tries_again(self) -> bool:
        """Whether I come to one more round before I step alone: once for this gradient."""
        before, self._tried_again = self._tried_again, True
        return not before

    @staticmethod
    def working(beats: Beats) -> set[PeerId]:
        """Learners that have closed a batch."""
        return {peer for peer, beat in beats.items() if beat.phase in WORKS}

    @staticmethod
    def steps(beats: Beats) -> set[PeerId]:
        """Learners that are about to make the release."""
        return {peer for peer, beat in beats.items() if beat.phase in STEPS}

    @staticmethod
    def stepped(beats: Beats) -> set[PeerId]:
        """Learners whose step is to be released."""
        return {peer for peer, beat in beats.items() if beat.phase in STEPPED}

    def _ready(self, beats: Beats) -> list[PeerId]:
        """Learners that have a gradient of my version and may keep it."""
        return [
            peer
            for peer, beat in beats.items()
            if beat.phase is not Phase.LEARNING and (peer in self._seen or beat.phase in WORKS)
        ]
