"""The weights of a policy whose full state is in transfer: a learner computes a gradient on them meanwhile.

    beside  the giver's newest release -> its weights, loaded and held -> may_learn   during the transfer
    end     before the state is loaded: weights still in transfer are dropped, a gradient is awaited

A gradient depends on the weights alone, and a state is six times as large. With run.averaging.overlap, where
a gradient may be of the version before, a syncing learner brings one to its first round. The others wait for
it as for the state, and have gradients ahead to compute. Not handled here: the gradient
(peers.learner.next_gradient), the state (peers.learner.agreement.state_transfer).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from peers.runtime.host import Host
from swarm.learn.fsdp.driver import RankLost
from swarm.storage.weights import Weights
from swarm.types import PeerId, Release

Load = Callable[[Release, Weights], Awaitable[bool]]
"""Loads and holds a release; returns whether that succeeded."""


class WeightsMeanwhile:
    def __init__(
        self,
        host: Host,
        above: Callable[[], tuple[Any, ...]],
        look: Callable[[], None],
        unused: Callable[[], Awaitable[None]],
    ) -> None:
        """`above()`: the rank that a release must exceed to be better than mine; `look()`: a gradient may
        begin; `unused()`: wait while one is computed of the policy."""
        self._host, self._above, self._look, self._unused = host, above, look, unused
        self.held: Release | None = None
        """The release whose weights were loaded before its state arrived."""
        self.may_learn = False
        """I have them, and the state is not here."""
        self._task: asyncio.Task[None] | None = None
        self._loads = False

    @contextlib.asynccontextmanager
    async def beside(self, giver: PeerId, load: Load) -> AsyncIterator[None]:
        """While a state is requested, load the weights of its giver, where they are available and of use.
        Raises the same errors as `end`, which is called at the end."""
        if self._host.config.run.averaging.overlap:
            self._task = asyncio.ensure_future(self._take(giver, load))
        try:
            yield
            await self.end()
        finally:
            if self._task is not None:
                self._task.cancel()
            self.may_learn = False

    async def end(self) -> None:
        """Wait until the learner may be another one. Raises RankLost when the policy was lost with a
        gradient."""
        if self._task is not None:
            if not self._loads:
                self._task.cancel()
            await asyncio.wait([self._task])
            if not self._task.cancelled():
                self._task.result()
        self.may_learn = False
        await self._unused()

    async def _take(self, giver: PeerId, load: Load) -> None:
        releases = self._host.releases
        await self._host.queries.ask_newest([giver])  # the last announcement received here may be outdated
        if (found := await releases.obtain(self._above())) is None:
            return
        release, weights = found
        self._loads = True
        try:
            if await load(release, weights):
                self.held, self.may_learn = release, True
                self._look()
        except RankLost:
            pass  # the loader of the state, or of a release, reports why it is unavailable
        finally:
            self._loads = False
