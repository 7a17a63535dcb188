"""Computes a learner's next gradient while its round waits for the others (`run.averaging.overlap`).

    round   gather, learn 1 | release, average 1 | step 1 | release, average 2 | step 2 | ...
    beside                  | gather, learn 2 ------------> gather, learn 3 ---------->
                              of the version before step 1   of the version after it

So a gradient is of the version before the one that it is stepped from: one version more of lag, which the
window counts when the batch is taken. A round that waits has one such gradient at most; the next batch is the
round's own where none is ready. While another learner is behind none computes ahead: it could not be in time
for the rounds of those that have their gradients already. A syncing learner is no obstacle: it comes without
a gradient, or with one that it computes during its sync. A learner for which the others wait takes fewer
groups, so that it stays in step with them. Invariants: the policy does not change while a gradient is
computed (`idle`); groups are here, in the inbox, or in the round. Not handled here: the use of the gradient
(peers.learner.learner).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import NamedTuple

from peers.intake.inbox import LearnerInbox
from peers.learner.agreement.other_learners import OtherLearners
from peers.runtime.host import Host
from swarm.core.agreement.batch_shares import fewer
from swarm.core.intake.batcher import Waiting
from swarm.learn.fsdp.driver import RankLost
from swarm.learn.learners.base_learner import Gradient


class Computed(NamedTuple):
    batch: list[Waiting]
    gradient: Gradient
    seconds: float
    """That it took."""


class NextGradient:
    def __init__(
        self,
        host: Host,
        inbox: LearnerInbox,
        other_learners: OtherLearners,
        may_begin: Callable[[], bool],
        may_take: Callable[[], bool],
        compute: Callable[[list[Waiting]], Awaitable[Gradient | None]],
    ) -> None:
        """`may_begin()`: the round waits, and a gradient of the policy as it is has a use. `may_take()`:
        nothing comes before it. `compute`: None where the batch was dropped."""
        self._host, self._inbox, self._compute = host, inbox, compute
        self._other_learners, self._may_begin, self._may_take = other_learners, may_begin, may_take
        self.batch: list[Waiting] = []
        """Groups of the gradient that is computed or ready."""
        self._computing = False
        self._ready: Computed | None = None
        self._lost: RankLost | None = None
        """The policy was lost with a gradient."""
        self._looks = asyncio.Event()

    async def run(self) -> None:
        """Compute one gradient ahead, until cancelled; none where the run does not overlap."""
        host = self._host
        while host.config.run.averaging.overlap:
            if self.batch or not self._may_begin():
                self._looks.clear()
                await self._looks.wait()
                continue
            now = host.now()
            closes = self._inbox.closes(now)
            if closes == 0.0 and self._may_take() and (batch := self._take(now)):
                await self._begin(batch)
            else:
                await host.changed(min(host.config.run.pace.beat, closes or 1e9))

    def _take(self, now: float) -> list[Waiting]:
        less = fewer(self._waited(now), self._host.status.speed, self._inbox.share())
        return self._inbox.take(now, ahead=1, fewer=less)

    def _waited(self, now: float) -> list[float]:
        """Seconds for which each of the others has waited for gradients of my version; 0: it does not."""
        others, roster = self._other_learners, self._host.roster
        waiting = others.waiting()
        return [
            max(0.0, now - roster.phased(peer)[0]) if peer in waiting else 0.0 for peer in others.partners()
        ]

    def look(self) -> None:
        """There may be something to begin."""
        self._looks.set()

    async def _begin(self, batch: list[Waiting]) -> None:
        self.batch, self._computing = batch, True
        self._inbox.credit()
        start, gradient = self._host.now(), None
        try:
            gradient = await self._compute(batch)
        except RankLost as error:
            self._lost = error
        if gradient is not None:
            self._ready = Computed(batch, gradient, self._host.now() - start)
        elif self._lost is None:
            self.batch = []
        self._computing = False
        self._host.move()

    async def idle(self) -> None:
        """Wait until no gradient is being computed. Raises RankLost when the policy was lost with one."""
        while self._computing:
            await self._host.changed(self._host.config.run.pace.beat)
        if self._lost is not None:
            lost, self._lost = self._lost, None
            raise lost

    def take(self) -> Computed | None:
        """The gradient that is ready; it is the round's now."""
        ready, self._ready = self._ready, None
        if ready is not None:
            self.batch = []
            self.look()
        return ready

    def give_back(self) -> None:
        """Its version is not the swarm's: the groups go back to the inbox."""
        self._inbox.batcher.give_back(self.batch)
        self.batch, self._ready = [], None
