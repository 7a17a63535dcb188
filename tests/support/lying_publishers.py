"""Publishers that announce releases which they do not have."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from role_swarms import EPOCH, Told, scenario

from peers.learner.learner import LearnerPeer
from swarm.events import Trained
from swarm.protocol import Phase
from swarm.sim.scenario import Fault
from swarm.storage.blocks import Blocks
from swarm.types import Digest, Release

LIAR = "learner-1"


Lies = Callable[["Liar"], Coroutine[Any, Any, None]]


class Liar(LearnerPeer):
    """Member of the run, who votes for what it is told to announce, and has no policy itself: of two learners
    one vote is enough."""

    lies: Lies

    async def run(self) -> None:
        if self.host.ports.me != LIAR:
            return await super().run()
        self.host.status.phase = Phase.GATHERING
        await self.lies()
        await self.host.stop.wait()

    async def tell(self, at: float, release: Callable[[], Release]) -> None:
        """Announce it at this virtual second."""
        await self.host.ports.clock.sleep(EPOCH + at - self.host.now())
        made, agreement = release(), self.host.releases.agreement
        agreement.vote(made.version, made.parent, made.weights)
        await self.host.releases.announce(made)

    def newest(self) -> int:
        return max(beat.version for _, beat in self.host.roster)

    def release(self, version: int, data: bytes = b"") -> Release:
        """Of great rank in its version; its bytes are `data`, or nowhere."""
        weights, size = Digest("1" * 64), len(data) or 1000
        if data:
            weights = Blocks.of(data).root
            self.host.releases.blobs.hold(version, Blocks.of(data))
        return Release(
            version=version,
            weights=weights,
            size=size,
            parent=Digest("0" * 64),
            publisher=self.host.ports.me,
            learners=9,
            groups=10**6,
            released=self.host.now(),
        )


def told_with(monkeypatch: pytest.MonkeyPatch, lies: Lies, *faults: Fault, minutes: float = 1.5) -> Told:
    """A learner, two samplers, a seed, and the liar."""
    monkeypatch.setattr(Liar, "lies", lies, raising=False)
    monkeypatch.setattr("peers.learner.learner.LearnerPeer", Liar)
    return Told(scenario(minutes, (2, 3), *faults))


def steps(told: Told, since: float) -> list[Any]:
    return told.of(Trained, since=since)
