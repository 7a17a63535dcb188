"""Learners that lie in their releases, for `swarm bench adversaries`.

    Publisher     announces now and then, and does nothing else
    Elected       votes for a step of its own in each version, and is in no round
    FalseMember   is in each round as honest ones are, and true there; at once it votes for other weights than
                  the round's result, and releases these, in place of the result or beside it

Not handled here: a liar's gradients in rounds (lab.studies.liars.adversaries).
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec
from torch import Tensor

from peers.commands import sim
from peers.learner.learner import LearnerPeer
from peers.runtime.host import Host
from swarm.core.agreement.rounds import Cause
from swarm.learn.files.weights import release_bytes
from swarm.learn.learners.learner import Learner
from swarm.learn.models.tabular import Tabular
from swarm.limits import RELEASE_LIMIT
from swarm.protocol import Phase, Topic
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
"""Steps by which weights are false that look as if rounding had made them: a member whose round made as many
results as it had members would vote for them (peers.learner.agreement.other_bytes)."""

RELEASES: dict[str, Callable[[Release], tuple[int, Digest]]] = {
    "false version": lambda newest: (newest.version + 1000, Digest("")),
    "false parent": lambda newest: (newest.version + 1, Digest("0" * 64)),
    "a next version of its own": lambda newest: (newest.version + 1, newest.weights),
}
"""Version and parent of its announcement, by the newest release that it holds; it does nothing else."""

ELECTED = "votes for its own steps"

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


class Elected(LearnerPeer):
    """A learner that says that it waits with a gradient and votes for itself at each version, once the others
    have made one; where it is chosen it releases the weights that training began with."""

    attack: str

    async def run(self) -> None:
        host, data, me = self.host, self.learner.weights().data, self.host.ports.me
        agreement = host.releases.agreement
        agreement._follow = lambda: None  # type: ignore[method-assign]
        while not host.stop.is_set():
            await host.ports.clock.sleep(0.1)
            newest = agreement.candidates.best(agreement.counts)
            if newest is None or newest.version == 0:
                continue
            version, parent = newest.version + 1, newest.weights
            host.status.version, host.status.weights, host.status.phase = version - 1, parent, Phase.MATCHING
            agreement.vote(version, parent, me)
            if agreement.agrees(version, parent, me, waits=True):
                await host.releases.announce(_made_up(host, version, parent, data, learners=1))


class FalseMember(LearnerPeer):
    """A learner that is honest but for its votes, and its announcement right after a step."""

    attack: str

    async def run(self) -> None:
        own, agreement = self.own_release, self.host.releases.agreement
        self._false = dict[int, Digest]()
        """Version -> the weights that it has votes for."""
        vote = agreement.vote

        def lie(version: int, parent: Digest, choice: str) -> None:
            vote(version, parent, self._false.get(version, choice))

        agreement.vote = lie  # type: ignore[method-assign]
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
            releases = self.host.releases
            release = _made_up(self.host, learner.version, parent, learner.false, len(members))
            self._false = {release.version: release.weights}
            releases.agreement.vote(release.version, parent, release.weights)
            if self.attack == A_LITTLE:
                await releases.announce(release)  # and follows it
            else:
                signed = msgspec.structs.replace(release, ballots=releases.agreement.ballots(release))
                sealed = self.host.seal(signed, RELEASE_LIMIT)
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
    """The learner of an attack of RELEASES or MEMBERS, or one that would be elected."""
    run = host.config.run
    learner, decoder = parts.learner()
    source = sim.tasks.source(run.task, run.seed)
    made: Publisher | Elected | FalseMember
    if attack == ELECTED:
        made = Elected(host, learner, source, decoder, None)
    elif attack in RELEASES:
        made = Publisher(host, learner, source, decoder, None)
    else:
        made = FalseMember(host, TwoFaced(run, MEMBERS[attack]), source, decoder, None)
    made.attack = attack
    return made
