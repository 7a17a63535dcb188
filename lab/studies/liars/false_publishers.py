"""Learners that lie in their releases, for `swarm bench adversaries`.

    Publisher     announces now and then, and does nothing else
    FalseMember   is in each round as honest ones are, and true there; at once it releases other weights than
                  the round's result, in place of these or beside them

Not handled here: a liar's gradients in rounds (lab.studies.liars.adversaries).
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from peers.commands import sim
from peers.learner.learner import LearnerPeer
from peers.runtime.host import Host
from swarm.core.agreement.rounds import Cause
from swarm.learn.files.weights import release_bytes
from swarm.learn.learners.learner import Learner
from swarm.learn.models.tabular import Tabular
from swarm.limits import RELEASE_LIMIT
from swarm.protocol import Topic
from swarm.settings.config import Run
from swarm.storage.blocks import Blocks
from swarm.types import Digest, PeerId, Release

EVERY = 5.0
"""Seconds between two false releases of a peer that does nothing else."""

MANY = 10**6
"""Groups that a false release claims: of two of one version that of more groups counts."""

BACK = 3.0
"""Times the round's step by which false weights lie behind the version before."""

LITTLE = 0.045
"""Steps by which weights are false that look as if rounding had made them
(peers.learner.agreement.other_bytes)."""

RELEASES: dict[str, Callable[[Release], tuple[int, Digest]]] = {
    "false version": lambda newest: (newest.version + 1000, Digest("")),
    "false parent": lambda newest: (newest.version + 1, Digest("0" * 64)),
    "a next version of its own": lambda newest: (newest.version + 1, newest.weights),
}
"""Version and parent of its announcement, by the newest release that it holds; it does nothing else."""

Lie = Callable[[Tensor, Tensor, Tensor], Tensor]
"""Its first version, the one before and the round's -> the weights that it releases."""


def _back(first: Tensor, before: Tensor, made: Tensor) -> Tensor:
    return before - BACK * (made - before)


def _little(first: Tensor, before: Tensor, made: Tensor) -> Tensor:
    """Towards where training began."""
    away = first - made
    return made + away * (LITTLE * (made - before).norm() / away.norm())


EQUIVOCATION, A_LITTLE = "equivocation", "other bytes, a little"

MEMBERS: dict[str, Lie] = {"other bytes": _back, A_LITTLE: _little, EQUIVOCATION: _back}
"""A member's release in each round in place of the round's result, or beside it."""


class Publisher(LearnerPeer):
    """A learner that does nothing but announce."""

    attack: str

    async def run(self) -> None:
        host, data = self.host, self.learner.weights().data
        while not host.stop.is_set():
            await host.ports.clock.sleep(EVERY)
            if known := host.releases.announced():
                version, parent = RELEASES[self.attack](known[-1])
                await host.releases.announce(_made_up(host, version, parent, data, learners=4))


class FalseMember(LearnerPeer):
    """A learner that is honest but for its announcement right after a step; of every second version, where
    that shows, as of fewer learners than there were."""

    attack: str

    async def run(self) -> None:
        own = self.own_release
        if self.attack == EQUIVOCATION:
            own._turn = lambda: 0  # type: ignore[method-assign]
        else:
            own._publish = self._wait  # type: ignore[method-assign]
        await super().run()

    async def _wait(self) -> None:
        self.own_release.wait_turns()

    async def step(self) -> Cause:
        parent, members, learner = self.own_release.weights, self._common_round.members, self.learner
        cause = await super().step()
        if cause is Cause.STEPPED and len(members) > 1:
            assert isinstance(learner, TwoFaced)
            is_little = self.attack == A_LITTLE
            said = len(members) - (0 if is_little else learner.version % 2)
            release = _made_up(self.host, learner.version, parent, learner.false, said)
            if is_little:
                await self.host.releases.announce(release)  # and follows it
            else:
                sealed = self.host.seal(release, RELEASE_LIMIT)
                await self.host.ports.gossip.publish(self.host.topic(Topic.RELEASE), sealed)
        return cause


class TwoFaced(Learner):
    """Steps as all do, but its released weights are others."""

    def __init__(self, run: Run, lie: Lie) -> None:
        super().__init__(Tabular(), run)
        self._lie, self._first = lie, self._optimizer.gather()
        self.false = b""

    def step(self, vector: Tensor) -> dict[str, float]:
        before = self._optimizer.gather()
        metrics = super().step(vector)
        made = self._optimizer.gather()
        self._optimizer.place(self._lie(self._first, before, made))
        self.false = release_bytes(self.policy.module)
        self._optimizer.place(made)
        return metrics


def _made_up(host: Host, version: int, parent: Digest, data: bytes, learners: int) -> Release:
    """A release of these bytes, which are held, of great rank in its version."""
    blocks = Blocks.of(data)
    host.releases.blobs.hold(version, blocks)
    return Release(
        version=version,
        weights=blocks.root,
        size=blocks.size,
        parent=parent,
        publisher=PeerId(host.ports.me),
        learners=learners,
        groups=MANY,
        released=host.now(),
    )


def liar(host: Host, parts: sim.PolicyParts, attack: str) -> LearnerPeer:
    """The learner of an attack of RELEASES or MEMBERS."""
    run = host.config.run
    learner, decoder = parts.learner()
    source = sim.tasks.source(run.task, run.seed)
    if attack in RELEASES:
        made: Publisher | FalseMember = Publisher(host, learner, source, decoder, None)
    else:
        made = FalseMember(host, TwoFaced(run, MEMBERS[attack]), source, decoder, None)
    made.attack = attack
    return made
