"""Loads the swarm's release into a learner that is behind it or differs from it.

    at the start        -> the swarm's news, before the state on this disk
    a better release    -> the full state of a learner that is at it: this learner syncs
                        (peers.learner.agreement.state_transfer)
        meanwhile       -> its weights, and a gradient             (peers.learner.agreement.weights_meanwhile)
    without that state  -> its weights (peers.learner.agreement.next_release)
    then                -> whether the last version is part of it, or was lost (swarm.core.agreement.lineage)

Not handled here: when a release is better, and the next command of the round
(peers.learner.agreement.own_release, .learner).
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable
from functools import partial

from peers.learner.agreement.other_learners import OtherLearners
from peers.learner.agreement.own_release import Had, OwnRelease
from peers.learner.agreement.state_transfer import StateTransfer
from peers.learner.agreement.weights_meanwhile import WeightsMeanwhile
from peers.learner.checkpoints import Progress, progress_of
from peers.learner.next_gradient import NextGradient
from peers.runtime.host import Host
from swarm import events
from swarm.core.agreement.lineage import Point
from swarm.core.agreement.rounds import Cause
from swarm.core.agreement.state_sync import GOSSIP_SECONDS
from swarm.learn.fsdp.driver import RankLost
from swarm.learn.learners.base_learner import BaseLearner
from swarm.protocol import Kind
from swarm.storage.blocks import Damaged
from swarm.storage.weights import Weights
from swarm.types import Release

SETTLE = 2.0
"""Seconds that a learner waits at its start for news of a release newer than its own checkpoint."""

RETRY = 0.5
"""Seconds of pause after a release could not be loaded: a lost rank process has restarted by then."""

STATE_PAUSE = 20.0
"""After a state was asked for, the next request waits this many times as long as that took; releases alone
are loaded until then. So the others wait for this learner for a twentieth of the time at most."""

STATE_PAUSE_AHEAD = 2.0
"""The same after a received state, where learners compute ahead (run.averaging.overlap): while one of them
makes other bytes than the rest, at each version, none of them does."""


class CatchUp:
    def __init__(
        self,
        host: Host,
        learner: BaseLearner,
        own_release: OwnRelease,
        other_learners: OtherLearners,
        transfer: StateTransfer,
        next_gradient: NextGradient,
        hold: Callable[[Progress, Point], Awaitable[None]],
        unused: Callable[[], Awaitable[None]],
    ) -> None:
        """`hold(made_of, had)`: hold what I loaded after I had that point; `unused()`: wait while the policy
        is read."""
        self._host, self._learner, self._transfer = host, learner, transfer
        self._next_gradient, self._hold = next_gradient, hold
        self._own_release, self._other_learners = own_release, other_learners
        self._taken = asyncio.Queue[tuple[Release, Had]]()
        self._no_state_before = -math.inf
        """The time until which no state is asked for."""
        self._synced = False
        """What I took last is the whole state of a learner that is in rounds: I step as they do."""
        self.meanwhile = WeightsMeanwhile(host, own_release.above, next_gradient.look, unused)

    async def await_news(self) -> None:
        """At the start, wait a while for a release that is ahead of this learner, and for a learner that is
        at it: the state on the disk may be long outdated. Without such a learner, for any release."""
        host, until = self._host, self._host.steady() + SETTLE
        while not host.stop.is_set() and (host.steady() < until or self._learner.version < 0):
            if self._own_release.is_ahead() and (self._others_are_ahead() or host.steady() >= until):
                return
            await host.queries.ask_newest([peer for peer, _ in host.roster])
            await host.changed(SETTLE / 4)

    def _others_are_ahead(self) -> bool:
        """Is a learner at the release that I would take? All begin with version 0."""
        release, others = self._own_release.awaited(), self._other_learners
        if release is None or (release.version == 0 and not others.ready()):
            return True
        return others.at_release(release) is not None

    async def fetch(self) -> Cause:
        """Load the better release, once nothing uses my policy."""
        had, host = self._own_release.had(), self._host
        if (taken := await self._take(had)) is None:
            return Cause.FETCH_FAILED
        await self._hold_taken(taken, had)
        self._took(taken, had)
        joins = self._synced and self._own_release.is_settled()
        host.status.early = host.status.early or joins
        host.beat_now()
        return Cause.SYNCED if joins else Cause.LOADED

    async def _take(self, had: Had) -> Release | None:
        """Load the better release. None when that failed; the learner is unchanged then."""
        self.meanwhile.held = None
        release = await self._take_state(had)
        in_rounds = self._host.config.run.averaging.mode == "butterfly"
        self._synced = in_rounds and release is not None
        if release is not None:
            return release
        return await self._load() or self.meanwhile.held

    def _took(self, taken: Release, had: Had) -> None:
        """I took a release, and had that version."""
        self._other_learners.set_syncing(False)
        self._taken.put_nowait((taken, had))

    async def _hold_taken(self, taken: Release, had: Had) -> None:
        """Hold what I took, and a gradient of it or of the version before."""
        held = self.meanwhile.held
        if held is not None and held.weights == taken.weights:
            return
        if held is None or held.weights != taken.parent:
            self._next_gradient.give_back()
        await self._hold(progress_of(taken), had[:2])

    async def run(self) -> None:
        """Emit the fate of each version that this learner had, beside the round, until cancelled: where two
        lines part may have to be asked of others."""
        while True:
            await self._report(*await self._taken.get())

    async def _report(self, taken: Release, had: Had) -> None:
        host, fork = self._host, None
        if had.version >= 0 and not had.is_of_its_round(taken):
            fork = await host.releases.lines.fork(had.released, taken)
        if fork is not None and fork.lost:
            host.emit(
                events.Forked,
                version=taken.version,
                since=fork.since,
                versions=len(fork.lost),
                groups=fork.groups,
                first=fork.lost[-1][1],
            )
        elif taken.version == had.version:
            host.emit(events.Snapped, version=had.version, mine=had.weights, theirs=taken.weights)
        else:
            host.emit(events.CaughtUp, version=taken.version, behind=taken.version - had.version)

    async def _take_state(self, had: Had) -> Release | None:
        """Load a better release with the full state of a learner that has it; None when there is no such
        learner, or its state would come too late: then the weights may be loaded. The others wait until
        `_took`."""
        own, host, start = self._own_release, self._host, self._host.steady()
        release = own.awaited()
        if release is None or release.version == 0 or start < self._no_state_before:
            return None  # at version 0 no learner has another state than its weights
        # rounds do not wait there: a learner that is behind takes the outer steps that it missed
        if release.version != self._learner.version and host.config.run.averaging.mode == "sites":
            return None
        if (giver := self._other_learners.at_release(release)) is None:
            return None
        self._other_learners.set_syncing(True)
        overlap, taken = host.config.run.averaging.overlap, None
        try:
            async with self.meanwhile.beside(giver, partial(self._load_meanwhile, had[:2])):
                # a state that is copied before all know of this sync may be one that they step on from
                await host.ports.clock.sleep(GOSSIP_SECONDS)
                until = start + self._other_learners.most
                taken = await self._transfer.take(giver, release, until, self.meanwhile.end)
        finally:
            if taken is None:
                self._other_learners.set_syncing(False)
        pause = STATE_PAUSE_AHEAD if overlap and taken is not None else STATE_PAUSE
        self._no_state_before = host.steady() + pause * (host.steady() - start)
        return taken

    async def _load_meanwhile(self, had: Point, release: Release, weights: Weights) -> bool:
        """Load and hold the weights of a release whose state is on its way. False where they could not be
        loaded."""
        if not await self._load_weights(release, weights):
            return False
        await self._hold(progress_of(release), had)
        return True

    async def _load(self) -> Release | None:
        """Load the weights of the better release, once its bytes are here; None when they did not come while
        they were worth waiting for."""
        arrived = await self._own_release.next.wait()
        return arrived[0] if arrived is not None and await self._load_weights(*arrived) else None

    async def _load_weights(self, release: Release, weights: Weights) -> bool:
        """False where they could not be loaded: the learner is unchanged then."""
        host = self._host
        try:
            await host.ports.work.run(Kind.LOAD, self._learner.load, weights)
        except (ValueError, RankLost, Damaged) as error:
            host.emit(
                events.Noted, level="warning", text=f"release {release.version} could not be taken: {error}"
            )
            # a ValueError is a defect of the bytes; a lost rank process is not, and a damaged file is ours
            if isinstance(error, ValueError):
                host.releases.refuse(release)
            if isinstance(error, Damaged):
                await host.releases.lose(release.weights)
            await host.ports.clock.sleep(RETRY)
            return False
        return True
