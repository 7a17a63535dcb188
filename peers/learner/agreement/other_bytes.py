"""Whether the release of another member of this learner's round is the result of that round.

    its release has other bytes -> fetched -> how far they are       (swarm.learn.files.release_distance)
        within the rounding of a step -> loaded
        beyond that                   -> denied                      (peers.runtime.releases.votes)

Where bytes are equal, the usual case, nothing is fetched and nothing is compared. A learner that loaded
weights without the optimizer's moments, or got another mean than most (swarm.core.gradient_checks.same_mean),
makes other steps than the rest, and denies nothing until its steps equal another's again. Not handled here:
runs at sites and swarms of fewer than three learners, whose releases have no witness.
"""

from __future__ import annotations

from peers.learner.agreement.own_release import Had, OwnRelease
from peers.runtime.host import Host
from swarm import events
from swarm.learn.files.release_distance import apart
from swarm.protocol import Kind
from swarm.storage.blocks import Damaged
from swarm.types import Release

NEAR, FAR = 0.02, 0.05
"""Steps of the round within which rounding alone leaves two members, and beyond which a release is not what
the round made. Of float32 masters of which every second is one unit in the last place off, at rates of 1e-7
to 1e-2, .02 is the most (tests/unit/learn/test_release_distance.py)."""

AGAIN = 3
"""Rounds in a row in which a learner's step is within NEAR of another's until it counts as theirs. Moments
that lack one step make steps that are .01 to .1 off: one may be near by chance."""


class OtherBytes:
    def __init__(self, host: Host, own_release: OwnRelease) -> None:
        self._host, self._own_release = host, own_release
        self._alike = 0
        """My last rounds in a row in which my step was as another's."""

    def set_astray(self, astray: bool) -> None:
        """Whether my moments are not the others', so that my steps are none of theirs."""
        self._host.status.astray, self._alike = astray, 0

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
            return False  # the loader of the release reports why it cannot be used
        return self.judge(release, steps)

    def judge(self, release: Release, steps: float) -> bool:
        """Whether to deny the release of another member of this round, which is so many steps from this
        learner's."""
        status, votes = self._host.status, self._host.releases.doubts.votes
        deceived = votes.got_another_mean(release.version)
        if steps > FAR and not status.astray and self._host.ports.me in deceived:
            self.set_astray(True)
            text = "a reducer handed me another mean than most of my round got: my step is not theirs"
            self._host.emit(events.Noted, level="warning", text=f"version {release.version}: {text}")
        self._alike = self._alike + 1 if steps <= NEAR else 0
        if self._alike >= AGAIN:
            self.set_astray(False)
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
