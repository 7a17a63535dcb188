"""What a peer posts to the board, and reads there: who serves, and which release is the newest.

    learners, seeds, evaluators -- heartbeat, newest release they hold --> board --> who knows no learner yet

Gossip reaches who is in the swarm; the board, who is about to be. Not handled here: what a heartbeat and a
release are worth (peers.runtime.host, peers.runtime.releases.exchange).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from swarm.limits import RECORD_SECONDS
from swarm.protocol import ROLES, Key

if TYPE_CHECKING:
    from peers.runtime.host import Host


async def post_forever(host: Host) -> None:
    """Post, where others depend on this peer; read, while no gossip has named a learner."""
    board, posts = host.ports.board, ROLES[host.who.role].posts
    while True:
        if posts:
            await board.put(host.topic(Key.MEMBER), host.sealed_beat(), ttl=RECORD_SECONDS)
            if sealed := host.releases.sealed_newest():
                await board.put(host.topic(Key.NEWEST), sealed, ttl=RECORD_SECONDS)
        knows = bool(host.roster.learners())
        if not knows:
            for name, take in ((Key.MEMBER, host.hear_beat), (Key.NEWEST, host.releases.hear)):
                for sender, sealed in (await board.get(host.topic(name))).items():
                    host.take(take, name, sender, sealed)
        await host.ports.clock.sleep(_pause(host, knows and not posts))


def _pause(host: Host, is_idle: bool) -> float:
    """Seconds until the next look. Who has nothing to post need not look before it may have lost its last
    learner."""
    often = RECORD_SECONDS / 3
    return max(often, host.config.run.pace.patience / 4) if is_idle else often
