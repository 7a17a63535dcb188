"""Learners that are present but do not come to rounds: two that cannot dial each other still receive each
other's heartbeats through the rest of the swarm, and a learner may announce a round and stay away.

A round that has only one of two learners, although the other one announced it too, is missed. After MISSES in
a row the two do not wait for each other, except in every second version, then in every fourth, at last in
every RETRY-th: they know it by its number, so that they try at the same time, though one of them counts more
misses. A common round ends it.

A learner that still computes when the others have met is late: LATES of these count as one missed round, and
all are forgotten, once, when it waits for a round in time: those that counted it late could not have invited
it, and do from then on. A learner that stood still at an earlier version is tried at once, as often, when it
is at the others'. So are two between which a learner's state is transferred, for they can dial each other:
the first, second, fourth ... time until a common round. Not handled here: which learner steps then
(swarm.core.agreement.solo_turns).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping

from swarm.types import PeerId

MISSES = 2
"""Missed rounds in a row: a busy machine or a lost message costs one or two, and each costs
`averaging.match` seconds."""

LATES = 2
"""Late rounds that count as a missed one, until the learner is no longer awaited: a new one, whose speed is
unknown, is late for some, and learners that took that for absence would be in other rounds than the rest."""

RETRY = 16
"""Most versions from one try to the next, a power of two: an eighth of a second of each version at the usual
match time."""


class MissedRounds:
    def __init__(self) -> None:
        self._missed, self._late = Counter[PeerId](), Counter[PeerId]()
        self._excused = set[PeerId]()
        """Learners whose lateness was forgotten, until a common round."""
        self._still, self._due = set[PeerId](), set[PeerId]()
        """Those that stood still when they missed a round, and those of them that are to be tried now."""
        self._tried = set[PeerId]()
        """Those that were, until a common round."""
        self._states = Counter[PeerId]()
        """States that went between us since a common round."""
        self._here: Mapping[PeerId, int] = {}
        """Other learners -> incarnation."""

    def expected(self, others: Iterable[PeerId], version: int) -> list[PeerId]:
        """Those that are worth waiting for in a round of this version."""
        return [peer for peer in others if peer in self._due or version % self._period(peer) == 0]

    def _misses(self, peer: PeerId) -> int:
        """Beyond MISSES each late round counts as one."""
        late = self._late[peer]
        return self._missed[peer] + max(late // LATES, late - (LATES - 1) * MISSES)

    def _period(self, peer: PeerId) -> int:
        """Versions from one try to the next."""
        beyond = self._misses(peer) - MISSES + 1
        return 1 if beyond <= 0 else min(RETRY, 2**beyond)

    def ended(
        self,
        entered: Collection[PeerId],
        members: Collection[PeerId],
        late: Collection[PeerId] = (),
        still: Collection[PeerId] = (),
    ) -> dict[PeerId, int]:
        """A round ended with `members`; `entered` announced that they come to one, by their heartbeats, of
        which `late` did not wait for it yet, and `still` waited for that of an earlier version. Returns those
        that are no longer awaited, with their missed rounds in a row."""
        for peer in members:
            self._forget(peer)
        missed = [peer for peer in entered if peer not in members and not self._excuse(peer, late)]
        self._late.update(peer for peer in missed if peer in late)
        self._missed.update(peer for peer in missed if peer not in late)
        self._still.update(peer for peer in missed if peer in still)
        self._due.difference_update(missed)
        return {peer: count for peer in missed if (count := self._misses(peer)) >= MISSES}

    def _excuse(self, peer: PeerId, late: Collection[PeerId]) -> bool:
        """Was it late, and waits in time now? That is excused once."""
        if peer in late or not self._late[peer] or peer in self._excused:
            return False
        self._excused.add(peer)
        del self._late[peer]
        return True

    def moved(self, peers: Collection[PeerId]) -> None:
        """These are at the others' version: those of them that stood still are tried at once."""
        moved = self._still.intersection(peers)
        self._still -= moved
        self._due |= moved - self._tried
        self._tried |= moved

    def shared_state(self, peer: PeerId) -> None:
        """A learner's whole state goes from it to me, or from me to it."""
        self._states[peer] += 1
        if self._states[peer].bit_count() == 1:
            self._due.add(peer)

    def _forget(self, peer: PeerId) -> None:
        del self._missed[peer], self._late[peer], self._states[peer]
        for those in (self._excused, self._still, self._due, self._tried):
            those.discard(peer)

    def forget(self, others: Mapping[PeerId, int]) -> None:
        """Only `others` are here, with these incarnations: a learner that returns later, or was restarted, is
        tried anew."""
        for peer in [*self._missed | self._late | self._states]:
            if others.get(peer) != self._here.get(peer):
                self._forget(peer)
        self._here = others
