"""Two learners whose gradients cannot both be right do not step for a while
(swarm.core.gradient_checks.pair_conflict).

    a round of the two is Opposed --emit, wait--> over: its time is, the other one went, a third one came,
                                                  another release is there, or this one is to stop

Then they meet again, and the next freeze is twice as long. With more learners none is frozen: a round of two
of them is lost. Not handled here: how the conflict is found (the Averager port).
"""

from __future__ import annotations

from collections.abc import Callable

from peers.learner.agreement.other_learners import OtherLearners
from peers.runtime.host import Host
from swarm import events
from swarm.core.gradient_checks.pair_conflict import FREEZE


class Freeze:
    def __init__(self, host: Host, others: OtherLearners, overtaken: Callable[[], bool]) -> None:
        self._host, self._others, self._overtaken = host, others, overtaken
        self._seconds = FREEZE[0]

    async def wait(self, version: int, why: str) -> None:
        """Until nothing keeps this learner from a round any more."""
        host, them = self._host, self._others.ready()
        if len(them) != 1:
            host.emit(events.RoundBroke, version=version, reason=why)
            return
        until, told = host.steady() + self._seconds, host.now() + self._seconds
        self._seconds = min(2 * self._seconds, FREEZE[1])
        host.emit(events.RoundBroke, version=version, reason=why, until=told)
        while (left := until - host.steady()) > 0 and self._others.ready() == them:
            if host.stop.is_set() or self._overtaken():
                return
            await host.changed(min(left, host.config.run.pace.beat))
