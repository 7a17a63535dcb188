"""Takes the swarm's release into a learner that is behind it or differs from it.

    a better release of my version -> its publisher's whole state (peers.roles.state_transfer), now and then
    else                           -> its weights (peers.roles.next_release), into the learner

Not handled here: when a release is better, what the round does next (peers.roles.own_release, .learner).
"""

from __future__ import annotations

import math

from peers.roles.own_release import OwnRelease
from peers.roles.state_transfer import StateTransfer
from peers.runtime.host import Host
from swarm import events
from swarm.learn.fsdp.driver import RankLost
from swarm.learn.fsdp.learner import ShardedLearner
from swarm.learn.learner import Learner
from swarm.protocol import Kind
from swarm.types import Release

RETRY = 0.5
"""Seconds after a release could not be taken: a rank that was lost is started again by then."""

STATE_PAUSE = 20.0
"""Times the seconds that a state took in vain until one is asked for again: so long the release alone will
do. A twentieth of the time may be lost for it, while the others wait for this learner and then go on without
it."""


class CatchUp:
    def __init__(
        self, host: Host, learner: Learner | ShardedLearner, own_release: OwnRelease, transfer: StateTransfer
    ) -> None:
        self._host, self._learner, self._transfer = host, learner, transfer
        self._own_release = own_release
        self._no_state_before = -math.inf
        """Until then no state is asked for."""

    async def take(self) -> Release | None:
        """Become the better release. None when none could be taken; the learner is as before then."""
        return await self._take_state() or await self._load()

    async def _take_state(self) -> Release | None:
        """A better release of my own version, with its publisher's whole state; None when that is not to be
        had."""
        own, start = self._own_release, self._host.now()
        release = own.next.awaited(own.above())
        if release is None or release.version != self._learner.version or start < self._no_state_before:
            return None
        taken = await self._transfer.take(release)
        # whoever is behind again makes other bytes than its publisher does by now
        if not taken or own.is_ahead():
            self._no_state_before = self._host.now() + STATE_PAUSE * (self._host.now() - start)
        return release if taken else None

    async def _load(self) -> Release | None:
        """The better release whose bytes are here, or come while they are worth waiting for; None when none
        came."""
        host = self._host
        if (arrived := await self._own_release.next.wait()) is None:
            return None
        release, weights = arrived
        try:
            await host.ports.work.run(Kind.LOAD, self._learner.load, weights)
        except (ValueError, RankLost) as error:
            host.emit(
                events.Noted, level="warning", text=f"release {release.version} could not be taken: {error}"
            )
            # nobody can use such bytes; a rank that is lost says nothing of them
            if isinstance(error, ValueError):
                host.releases.refuse(release)
            await host.ports.clock.sleep(RETRY)
            return None
        return release
