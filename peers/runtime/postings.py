"""A peer's records on the board, and its reading of others': peers that serve, and the newest release.

    learners, seeds, evaluators -- heartbeat, newest release they hold --> board --> peers without a learner

Gossip reaches peers that are in the swarm; the board, those that are about to be. Not handled here: the use
of a heartbeat and a release (peers.runtime.presence, peers.runtime.releases.exchange).
"""

from __future__ import annotations

from collections.abc import Callable

from peers.runtime.heartbeats import Heartbeats
from peers.runtime.kernel import Kernel
from peers.runtime.presence import Presence
from peers.runtime.releases.exchange import ReleaseExchange
from swarm.limits import RECORD_SECONDS
from swarm.protocol import ROLES, Key
from swarm.types import PeerId

Take = Callable[[Callable[[bytes], object], str, PeerId, bytes], None]
"""(receiver of a message, its kind, its sender, the message): Host.take."""


class Postings:
    def __init__(
        self, kernel: Kernel, beats: Heartbeats, releases: ReleaseExchange, presence: Presence, take: Take
    ) -> None:
        self._kernel, self._beats, self._releases = kernel, beats, releases
        self._take = take
        self._read: dict[Key, Callable[[bytes], object]] = {
            Key.MEMBER: presence.hear,
            Key.NEWEST: releases.hear,
        }

    async def run(self) -> None:
        """Post, where others depend on this peer; read, while no gossip has named a learner."""
        kernel, board = self._kernel, self._kernel.ports.board
        posts = ROLES[kernel.who.role].posts
        while True:
            if posts:
                await board.put(kernel.topic(Key.MEMBER), self._beats.sealed(), ttl=RECORD_SECONDS)
                if sealed := self._releases.sealed_newest():
                    await board.put(kernel.topic(Key.NEWEST), sealed, ttl=RECORD_SECONDS)
            knows = bool(kernel.roster.learners())
            if not knows:
                for name, take in self._read.items():
                    for sender, sealed in (await board.get(kernel.topic(name))).items():
                        self._take(take, name, sender, sealed)
            await kernel.ports.clock.sleep(self._pause(knows and not posts))

    def _pause(self, is_idle: bool) -> float:
        """Seconds until the next look. A peer without records of its own looks only when it may have lost its
        last learner."""
        often = RECORD_SECONDS / 3
        return max(often, self._kernel.config.run.pace.patience / 4) if is_idle else often
