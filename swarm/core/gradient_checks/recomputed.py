"""Which gradient a learner recomputes, and the consequences of the result.

    members of a round, now -> the member due      first those that others have proof against, and those that
                                                   were never verified here; then all in turn
    cosine and norms of its gradient and the recomputed one -> a strike, or none

A recomputation proves what a single peer sent, whatever the noise, and needs no majority. An unverified
member is due at once, so that one that lies from its first round on is found in as many rounds as there are
members; so is a member that another one names, once for each that names it: where one learner found a lie the
others find it in the rounds that follow. After that a recomputation of s seconds is followed by s (n / share
- 1) seconds without one, since a round of n members waits for each of them, and the order is drawn anew for
each turn. In float32 one gradient that differs is a strike; beside bfloat16 it takes several, in the next
rounds. A reducer leaves out of its means the members that it has proof against, so that a lie in some parts
alone is of no use; one that most name is left out everywhere, with its groups. Not handled here: how a
gradient is recomputed (peers.learner.agreement.rechecks), who is most (majority.named_by_most).
"""

from __future__ import annotations

import random
from collections import OrderedDict
from collections.abc import Collection, Mapping

from swarm.core.suspensions import HOUR, Suspension, Suspensions
from swarm.limits import remember
from swarm.types import PeerId

AGREE, AGREE_OTHERWISE = 0.99, 0.5
"""Least cosine, where both compute in float32 and where not. Codecs of a round (float16, int8) leave .9999.
Some batches are so ill-conditioned that bfloat16 turns their gradients far: beside float32 .73 in the worst
of 32 late in a training (docs/trust.md). Another batch's gradient has less than .5."""

FAR, FAR_OTHERWISE = 2.0, 4.0
"""Most factor between the norms of the sent and the recomputed gradient, of the same two kinds."""

SLOWER = 2.0
"""A learner that is slower than the fastest member by more checks only those that others name: all wait for
it."""

UNSURE = 3
"""Checks that prove nothing alone, and together are a strike: without the member's groups, since it may have
lost a message or been restarted, or with another gradient where not both compute in float32."""

FORGIVEN = 4
"""Checks that agree and make up for one of these: a member that shows nothing whenever it lied is found
unless it tells the truth in four of five rounds."""

NAMED = 1024
"""Pairs of a member and one that names it: a liar that names all others makes each of them check all others
once."""


class Rechecks:
    """Of one learner."""

    def __init__(self, rng: random.Random, share: float) -> None:
        """`share` of a round's time for the recomputations of all its members; `rng` is private."""
        self._rng, self._share = rng, share
        self._rests_until = 0.0
        self._turn: list[PeerId] = []
        """Members that were seen and are due before the others are again."""
        self._known: set[PeerId] = set()
        """Those that were due once."""
        self._named: OrderedDict[tuple[PeerId, PeerId], None] = OrderedDict()
        """(member, one that has proof against it), the last NAMED of them."""
        self._accused: dict[PeerId, None] = {}
        """Members that were named since they were due."""
        self._unsure: dict[PeerId, float] = {}
        """Checks of a member that prove nothing alone, less those that were made up for."""
        self._blank: set[PeerId] = set()
        """Members that were due at once and rightly sent nothing but zeros here: due once they send more."""
        self._again: set[PeerId] = set()
        """Members that are due in the next round: its batch is another one."""
        self._suspensions = Suspensions(HOUR, longest=HOUR)
        """Of members with a strike: each holds for an hour."""

    def due(self, members: Collection[PeerId], now: float) -> PeerId | None:
        """The member of a round whose gradient is to be recomputed."""
        if accused := [peer for peer in self._accused if peer in members]:
            return accused[0]
        if blank := sorted(self._blank.intersection(members)):
            return blank[0]
        if (new := sorted(set(members) - self._known)) and self._share > 0:
            return self._rng.choice(new)
        if now < self._rests_until or not members or not self._share > 0:
            return None
        if not (left := [peer for peer in self._turn if peer in members]):
            self._turn = left = self._rng.sample(sorted(members), len(members))
        return left[0]

    def is_accused(self, peer: PeerId) -> bool:
        """Whether another learner named it since it was due."""
        return peer in self._accused

    def heard(self, named: Mapping[PeerId, Collection[PeerId]]) -> None:
        """Members of a round -> those that have proof against them."""
        for pair in [(peer, by) for peer, its in sorted(named.items()) for by in its]:
            if pair not in self._named and self._share > 0:
                self._accused[pair[0]] = None
            remember(self._named, pair, None, NAMED)

    def is_blank(self, peer: PeerId) -> bool:
        """Whether zeros of it tell nothing new."""
        return peer in self._blank

    def spent(self, peer: PeerId, seconds: float, members: int, now: float, *, zeros: bool = False) -> None:
        """A recomputation in a round of so many members is over. `zeros`: these were sent and found, which
        says little of the rest."""
        if zeros and (peer in self._accused or peer not in self._known):
            self._blank.add(peer)
        elif not zeros:
            self._blank.discard(peer)
        self._known.add(peer)
        self._accused.pop(peer, None)
        if peer in self._again:
            self._again.discard(peer)
            self._accused[peer] = None
        self._turn = [each for each in self._turn if each != peer]
        self._rests_until = now + seconds * (members / self._share - 1)

    def found(self, peer: PeerId, cosine: float, times: float, alike: bool, now: float) -> Suspension | None:
        """The strike of a member that sent `times` the norm of the recomputed gradient, both in float32
        where `alike`; None: they agree."""
        agree, far = (AGREE, FAR) if alike else (AGREE_OTHERWISE, FAR_OTHERWISE)
        if cosine >= agree and 1 / far <= times <= far:
            self._unsure[peer] = max(0.0, self._unsure.get(peer, 0.0) - 1 / FORGIVEN)
            return None
        why = (
            f"it sent a gradient that its groups do not give: cosine {cosine:.3f}, {times:.3g} times the norm"
        )
        if alike:
            return self._suspensions.suspend(peer, why, now)
        self._again.add(peer)
        return self._not_sure(peer, why, now)

    def showed_nothing(self, peer: PeerId, why: str, now: float) -> Suspension | None:
        """A member's gradient cannot be recomputed -> its strike, or None."""
        return self._not_sure(peer, f"it did not show what its gradient is of: {why}", now)

    def _not_sure(self, peer: PeerId, why: str, now: float) -> Suspension | None:
        self._unsure[peer] = min(UNSURE, self._unsure.get(peer, 0.0) + 1.0)
        if self._unsure[peer] < UNSURE:
            return None
        return self._suspensions.suspend(peer, f"again and again {why}", now)

    def against(self, now: float) -> Collection[PeerId]:
        """Members with a strike."""
        return self._suspensions.in_force(now)
