"""The vote of a learner where the members of its round made different bytes.

    all members voted, for no bytes most
        those of the oldest -> fetched -> how far from mine      (swarm.learn.files.release_distance)
            within the rounding of a step -> voted for
            beyond that                   -> those of the next one that is older than this learner
    nothing is decided by that, now or in the last version -> the bytes of the oldest

On like machines all members make the same bytes, and nothing is fetched. Not handled here: the release of
these bytes, which is loaded as any other one (peers.learner.agreement.catch_up).
"""

from __future__ import annotations

from collections.abc import Collection
from itertools import takewhile

from peers.runtime.host import Host
from swarm.core.agreement.electorate import PAIR
from swarm.learn.files.release_distance import apart
from swarm.net.ports import NetError
from swarm.protocol import Kind
from swarm.storage.blocks import Blocks, Damaged
from swarm.types import Digest, PeerId

FAR = 0.05
"""Steps of the round beyond which other bytes are not what the round made. Of float32 masters of which every
second is one unit in the last place off, at rates of 1e-7 to 1e-2, .02 is the most
(tests/unit/learn/test_release_distance.py)."""


class OtherBytes:
    def __init__(self, host: Host) -> None:
        self._host = host
        self._all_far = False
        """In the last version none were near mine, and no time-out changed that."""
        self._passed = 0, Digest("")
        """Bytes of a version that were voted for and did not come."""

    def are_many(self, version: int, parent: Digest, members: Collection[PeerId]) -> bool:
        """Did the members of the round that made this version all vote, for bytes of which none has enough
        votes?"""
        agreement, choices = self._host.releases.agreement, {*self._of(version, parent, members).values()}
        voters = agreement.of(version, parent).keys()
        if len(choices) < 2 or not voters >= {*self._present(members)}:
            return False
        return not any(agreement.agrees(version, parent, one, waits=True) for one in choices)

    def pass_over(self, version: int, weights: Digest) -> None:
        """These did not come: vote for others."""
        self._passed = version, weights

    def _of(self, version: int, parent: Digest, members: Collection[PeerId]) -> dict[PeerId, Digest]:
        agreement = self._host.releases.agreement
        electors, votes = agreement.electors(), agreement.of(version, parent)
        found = {peer: Digest(votes[peer]) for peer in self._present(members) if peer in votes}
        return {
            peer: weights
            for peer, weights in found.items()
            if weights not in electors and (version, weights) != self._passed
        }

    def _present(self, members: Collection[PeerId]) -> list[PeerId]:
        agreement = self._host.releases.agreement
        return agreement.order([peer for peer in agreement.electors() if peer in members])

    async def vote(self, version: int, parent: Digest, members: Collection[PeerId], mine: Blocks) -> None:
        """Vote for the bytes of the oldest member that are near mine, unless this learner is older."""
        host, before = self._host, self._host.releases.blobs.blocks(parent)
        votes = self._of(version, parent, members)
        if len(votes) <= PAIR:  # neither of two is most: the older one is followed, without a look
            self.give_in(version, parent, members)
        if len(votes) <= PAIR or before is None:
            return
        older = takewhile(lambda vote: vote[0] != host.ports.me, votes.items())
        for peer, weights in older:
            if await self._is_near(version, peer, weights, mine, before):
                self._all_far = False
                host.releases.agreement.vote(version, parent, weights)
                return
        if self._all_far:
            self.give_in(version, parent, members)

    def give_in(self, version: int, parent: Digest, members: Collection[PeerId]) -> None:
        """Vote for the bytes of the oldest member: none are near to those of another."""
        self._all_far = True
        if votes := self._of(version, parent, members):  # others may be decided by now, and have the next one
            self._host.releases.agreement.vote(version, parent, next(iter(votes.values())))

    async def _is_near(
        self, version: int, peer: PeerId, weights: Digest, mine: Blocks, before: Blocks
    ) -> bool:
        host = self._host
        try:
            theirs = await host.releases.blobs.fetch(version, weights, mine.size, [peer], lambda: [peer])
            return await host.ports.work.run(Kind.PATCH, apart, mine, theirs, before) <= FAR
        except (NetError, ValueError, Damaged):
            return False  # it is not what this round made, or is not here: the next one's may be
