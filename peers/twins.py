"""How learners become the same to the last bit: one takes over another's whole state, not only its release.

A release has bf16 weights; the next step also depends on the fp32 master copy and the optimizer's moments. A learner that only
loads releases would differ from the others in every version and snap every time. So, once after it fell in with a round, it asks
the publisher for the state behind the release (service `state`), checks that its bf16 weights are exactly the release's, and from
then on makes the same bytes itself. When the publisher has moved on, the release alone will do until the next time.

Only learners are served: a state is six times as large as a release, and moments cannot be checked against anything.
"""

from __future__ import annotations

from peers.host import Host
from swarm import wire
from swarm.learn.learner import Learner
from swarm.learn.ranks import RankLost
from swarm.learn.sharded import ShardedLearner
from swarm.learn.weights import digest
from swarm.net.blobs import STATES
from swarm.net.ports import NetError, Refused
from swarm.types import Digest, PeerId, Release, Struct


class Offer(Struct):
    """A learner's state, as blobs."""

    digest: Digest
    manifest: Digest
    size: int


class Twins:
    def __init__(self, host: Host, learner: Learner | ShardedLearner) -> None:
        self._host, self._learner = host, learner

    async def serve(self) -> None:
        await self._host.ports.mail.serve("state", self._offer)

    async def _offer(self, sender: PeerId, request: bytes) -> bytes:
        """`request` is the weights' digest of the release whose state is wanted."""
        host = self._host
        if sender not in host.roster.learners():
            raise Refused("only learners of this run are given a learner's state")
        try:
            version, weights, state = await host.ports.work.run("pack", self._snapshot)
        except RankLost as error:
            raise Refused(f"this learner has no state now: {error}") from error
        if digest(weights) != request.decode(errors="replace"):
            raise Refused(f"this learner is at version {version} by now")
        manifest, address = host.blobs.publish(state, version, digest(state))
        return wire.encode(Offer(digest=manifest.weights, manifest=address, size=manifest.size))

    def _snapshot(self) -> tuple[int, bytes, bytes]:
        return self._learner.version, self._learner.weights(), self._learner.state()

    async def take(self, release: Release) -> bool:
        """Become its publisher's twin. False when that was not to be had; the learner is as before then."""
        host = self._host
        try:
            answer = await host.ports.mail.send(release.publisher, "state", release.weights.encode())
            offer = wire.decode(answer, Offer)
            state = await host.blobs.fetch_release(_as_release(offer, release), [release.publisher], STATES)
            await host.ports.work.run("load", self._become, state, release)
        except (NetError, ValueError):  # (wire.WireError is a ValueError)
            return False
        return True

    def _become(self, state: bytes, release: Release) -> None:
        """Raises ValueError, with the old state back, when the state is not that of the release."""
        before = self._learner.state()
        self._learner.become(state)
        if self._learner.version != release.version or digest(self._learner.weights()) != release.weights:
            self._learner.become(before)
            raise ValueError(f"the state is not that of release {release.version}")


def _as_release(offer: Offer, release: Release) -> Release:
    return Release(
        version=release.version,
        weights=offer.digest,
        manifest=offer.manifest,
        size=offer.size,
        parent=release.weights,
        publisher=release.publisher,
        learners=release.learners,
        groups=release.groups,
        released=release.released,
    )
