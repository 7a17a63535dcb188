"""Whether a sampler's groups can still be trained, by the newest release that it has.

    age of a policy in versions and in seconds, against run.window
      beyond half of it   urgent: its groups also go to learners without credit
      beyond all of it    late: no learner trains its groups, and a call that samples more of them is stopped
Long completions are old when they are finished. If they waited for credit as others do, they would expire,
and training would drift to short ones. Not handled here: the learner's own judgement
(swarm.core.intake.admission).
"""

from __future__ import annotations

from peers.runtime.host import Host
from swarm.core.intake.admission import outgrown, released_here
from swarm.settings.config import Window
from swarm.types import Group, Release


class Freshness:
    def __init__(self, host: Host) -> None:
        self._host = host
        self._whole = window = host.config.run.window
        self._half = Window(versions=window.versions // 2, seconds=window.seconds / 2)

    def is_late(self, group: Group) -> bool:
        return self._is_outside(group.version, self._released(group), self._whole)

    def is_urgent(self, group: Group) -> bool:
        return self._is_outside(group.version, self._released(group), self._half)

    def is_over(self, policy: Release) -> bool:
        """Groups of this policy that are not finished yet are late."""
        return self._is_outside(policy.version, self._host.releases.released_here(policy), self._whole)

    def _released(self, group: Group) -> float:
        known = self._host.releases.known(group.version, group.weights)
        return released_here(group, known, self._host.releases.released_here)

    def _is_outside(self, version: int, released: float, window: Window) -> bool:
        held = self._host.releases.held
        newest = max(version, held.version if held else 0)
        return outgrown(version, released, window, newest, self._host.now()) is not None
