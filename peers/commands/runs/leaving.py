"""The order in which the peers of a folder are asked to leave, and progress messages while they finish.

those that still run --asked now--> names, the seed's last: it receives the others' last releases and
                                    their farewells, so that its journal and history record how the run ended
                     --news-->      a line at each change, with the peers that are awaited
"""

from __future__ import annotations

from collections.abc import Collection

from peers.runtime.signals import LEAVE_PATIENCE
from swarm.protocol import Role

SEED_LEAVES = 15.0
"""Seconds of LEAVE_PATIENCE that are left to the seed: it has no group or step to finish."""

TOLD_EVERY, TOLD_AGAIN = 15.0, 1.0
"""Seconds between two lines while no peer leaves, and while peers do."""


class Leaving:
    """`now` is a steady clock's, in seconds."""

    def __init__(self, names: Collection[str], now: float) -> None:
        self._names, self._began = tuple(names), now
        self._asked: set[str] = set()
        self._printed, self._left = now, tuple(names)

    def waited(self, now: float) -> float:
        """Seconds since it began."""
        return now - self._began

    def asked(self, left: Collection[str], now: float) -> list[str]:
        """The peers of `left` to ask now; each is asked once."""
        others = [name for name in left if name != Role.SEED]
        waits = others and self.waited(now) < LEAVE_PATIENCE - SEED_LEAVES
        due = [name for name in (others if waits else left) if name not in self._asked]
        self._asked.update(due)
        return due

    def news(self, left: Collection[str], now: float) -> str:
        """A line where one has left since the last one, or that is long ago; else nothing."""
        if now - self._printed < (TOLD_AGAIN if tuple(left) != self._left else TOLD_EVERY):
            return ""
        self._printed, self._left = now, tuple(left)
        gone = len(self._names) - len(left)
        done = f"{gone} of {len(self._names)} have left; " if gone else ""
        return f"{done}waiting for {', '.join(left)} ({self.waited(now):.0f} s)"
