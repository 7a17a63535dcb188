"""Whether what another member of my round released is what the round made.

    its release has other bytes than mine -> fetched -> how far they are   (swarm.learn.release_distance)
        within what rounding makes of a step -> I take it
        beyond that                          -> I deny it                  (peers.runtime.release_votes)

Where bytes are equal, the usual case, nothing is fetched and nothing is compared. Who took weights without
the optimizer's moments, or got another mean than most (swarm.core.same_mean), makes other steps than the
rest, and denies nothing, until its step is as another's again. Not handled here: runs at sites and swarms of
fewer than three learners, whose releases have no witness.
"""

from __future__ import annotations

from peers.roles.own_release import Had, OwnRelease
from peers.runtime.host import Host
from swarm import events
from swarm.blocks import Damaged
from swarm.learn.release_distance import apart
from swarm.protocol import Kind
from swarm.types import Release

NEAR, FAR = 0.02, 0.05
"""Steps of the round within which rounding alone leaves two members, and beyond which a release is not what
the round made. Of float32 masters of which every second is one unit in the last place off, at rates of 1e-7
to 1e-2, .02 is the most (tests/learn/test_release_distance.py)."""


class OtherBytes:
    def __init__(self, host: Host, own_release: OwnRelease) -> None:
        self._host, self._own_release = host, own_release

    async def refuses(self, had: Had) -> bool:
        """Do I deny the release that I am about to take in place of the version that I had?"""
        with self._host.releases.doubts.votes.comparing():
            return await self._differs(had)

    async def _differs(self, had: Had) -> bool:
        host, own, votes = self._host, self._own_release, self._host.releases.doubts.votes
        release = own.awaited()
        if release is None or not (had.is_of_its_round(release) and votes.stands()):
            return False
        arrived = await own.next.wait()
        if arrived is None or not had.is_of_its_round(arrived[0]):
            return False
        release, weights = arrived
        mine, before = (host.releases.blobs.blocks(root) for root in (own.weights, had.parent))
        if mine is None or before is None:
            return False
        try:
            steps = await host.ports.work.run(Kind.PATCH, apart, mine, weights.blocks, before)
        except (ValueError, Damaged):
            return False  # who loads it says why it cannot be used
        return self._judge(release, steps)

    def _judge(self, release: Release, steps: float) -> bool:
        status, votes = self._host.status, self._host.releases.doubts.votes
        deceived = votes.got_another_mean(release.version)
        if steps > FAR and not status.astray and self._host.ports.me in deceived:
            status.astray = True
            text = "a reducer handed me another mean than most of my round got: my step is not theirs"
            self._host.emit(events.Noted, level="warning", text=f"version {release.version}: {text}")
        if steps <= NEAR:
            status.astray = False
        if steps <= FAR or status.astray:
            return False
        votes.found_false(release)
        if not votes.denies(release):
            return False
        self._own_release.turn_again()
        named = f"release {release.version} of {release.publisher}"
        text = f"{named} is {steps:.2g} steps from what its round made"
        self._host.emit(events.Noted, level="warning", text=text)
        return True
