"""When a run is over for a peer: a seed says so, and the releases and evaluations received here agree.

    seed's heartbeat, phase `complete` -> called -> run.stop reached here, too -> this peer leaves

Peers do not leave before a seed says so, which it does when it holds the last release: others may have yet to
fetch it. Not handled here: when `run.stop` is reached (swarm.core.completion).
"""

from __future__ import annotations

from collections import OrderedDict

from peers.runtime.kernel import Kernel
from peers.runtime.releases.exchange import ReleaseExchange
from swarm import events
from swarm.core.completion import is_complete
from swarm.limits import remember
from swarm.protocol import RESTING, Role
from swarm.types import PeerId

SEEDS = 1024
"""Seeds that are remembered: a public run's strangers may call themselves so."""


class RunEnd:
    def __init__(self, kernel: Kernel, releases: ReleaseExchange) -> None:
        self._kernel, self._releases = kernel, releases
        self._seeds: OrderedDict[PeerId, None] = OrderedDict()
        """Seeds that announced that the run is complete."""

    def is_complete(self, version: int) -> bool:
        """Whether the run is complete (`run.stop`) with this version, by the evaluations received here."""
        kernel = self._kernel
        mine = kernel.status.accuracy, kernel.status.judged
        judged = [mine] if kernel.who.role is Role.EVALUATOR else []
        judged += [
            (beat.accuracy, beat.judged)
            for _, beat in kernel.roster
            if beat.role is Role.EVALUATOR and beat.phase not in RESTING
        ]
        return is_complete(kernel.config.run, version, judged)

    def called(self, seed: PeerId) -> None:
        """A seed announces that the run is complete. Report once where the facts known here disagree."""
        if seed not in self._seeds and not self.is_complete(newest := self._newest()):
            text = (
                f"{seed} says that the run is complete, at version {newest}, and neither the releases nor the"
                " evaluators heard here say so: this peer goes on"
            )
            self._kernel.emit(events.Noted, level="warning", text=text)
        remember(self._seeds, seed, None, SEEDS)

    def look(self) -> None:
        """Leave where a seed announced that the run is complete and the facts known here agree."""
        if self._seeds and not self._kernel.stop.is_set() and self.is_complete(self._newest()):
            self._kernel.leave()

    def _newest(self) -> int:
        newest = self._releases.awaited(())
        return newest.version if newest is not None else -1
