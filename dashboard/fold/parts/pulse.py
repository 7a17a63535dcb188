"""Figures over all peers that count, once in each slot of time.

    peers               alive, of any role
    groups_per_second   trained, by the learners' claims
    tokens_per_second   in these groups, by the same claims
    busy                mean share of the learners' time spent computing
    lag_max             versions that the last peer that does not rest is behind the newest release

They are computed when time enters the next slot, as of the end of the slot before. A slot without any event
has no figures.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from dashboard.fold.peer import MOVING, PeerRow
from dashboard.text import moment
from swarm.protocol import RESTING, Role

NAMES = ("peers", "groups_per_second", "tokens_per_second", "busy", "lag_max")
SLOT = 5
"""Seconds: two heartbeats, so that every living peer has sent one."""


class Pulse(msgspec.Struct):
    slot: int = -1

    def enter(self, now: float) -> int | None:
        """Unix seconds at which the slot before ended, when `now` is in another one."""
        before, self.slot = self.slot, int(now) // SLOT
        return (before + 1) * SLOT if self.slot != before and before >= 0 else None

    def begin(self, now: float) -> None:
        """Continue by another clock, which reads `now`."""
        self.slot = self.slot if self.slot <= int(now) // SLOT else -1

    def sanitize(self) -> None:
        """Clip a part from a snapshot to the bounds that a fold keeps."""
        self.slot = int(moment(self.slot * SLOT)) // SLOT if self.slot >= 0 else -1


def measure(peers: Iterable[PeerRow], now: float, patience: float, newest: int) -> dict[str, float]:
    alive = [peer for peer in peers if peer.status(now, patience) == "alive"]
    learners = [peer for peer in alive if peer.role is Role.LEARNER]
    moving = [peer for peer in alive if peer.role in MOVING and peer.phase not in RESTING]
    lags = [max(newest - peer.version, 0) for peer in moving if peer.version >= 0]
    figures = {
        "peers": float(len(alive)),
        "groups_per_second": sum(peer.rate for peer in learners),
        "tokens_per_second": sum(peer.tokens for peer in learners),
    }
    if learners:
        figures["busy"] = sum(peer.busy for peer in learners) / len(learners)
    if lags:
        figures["lag_max"] = float(max(lags))
    return figures
