"""Token buckets: limits for each peer, and for all peers together.

`now` is in seconds of any clock. Not handled here: the unit, and the treatment of peers beyond their limit.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable

from swarm.limits import remember

UNBOUNDED = (1e12, 1e12)
"""Units a second, and burst, without a limit."""


class Budget:
    """Token buckets per peer in a bounded table, and one over all of them."""

    def __init__(self, peer: tuple[float, float], everyone: tuple[float, float], known: int) -> None:
        """`peer` and `everyone` are (units a second, burst)."""
        self._peer, self._everyone, self._known = peer, everyone, known
        self._levels: OrderedDict[Hashable, tuple[float, float]] = OrderedDict()
        self._all = (everyone[1], 0.0)

    def take(self, who: Hashable, units: float, now: float) -> bool:
        """Take `units` for `who` at time `now`, in seconds. False, with nothing taken, beyond a limit."""
        level = self._refilled(self._levels.get(who, (self._peer[1], now)), self._peer, now)
        total = self._refilled(self._all, self._everyone, now)
        granted = units <= level and units <= total
        remember(self._levels, who, (level - units if granted else level, now), self._known)
        self._all = (total - units if granted else total, now)
        return granted

    @staticmethod
    def _refilled(state: tuple[float, float], bucket: tuple[float, float], now: float) -> float:
        return min(bucket[1], state[0] + max(0.0, now - state[1]) * bucket[0])
